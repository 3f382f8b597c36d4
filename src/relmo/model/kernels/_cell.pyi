def cell(x: int, s: int, b: int, c: int, m: int, n: int, dim: int, bound: float, /) -> None: ...
def cell_int8(
    x: int,
    s: int,
    row_scales: int,
    column_scales: int,
    b: int,
    c: int,
    m: int,
    n: int,
    dim: int,
    bound: float,
    /,
) -> None: ...
def cell_kept(
    x: int, s: int, b: int, before: int, c: int, m: int, n: int, dim: int, bound: float, /
) -> None: ...
def cell_back(
    gates: int, before: int, c: int, dm: int, dc: int, d: int, n: int, dim: int, bound: float, /
) -> None: ...
def quantize(x: int, q: int, row_scales: int, n: int, dim: int, /) -> None: ...
def scale(
    s: int, row_scales: int, column_scales: int, y: int, n: int, dim: int, bound: float, /
) -> None: ...
def read_one(
    x: int,
    recurrent: int,
    projection: int,
    bias: int,
    h: int,
    c: int,
    y: int,
    s: int,
    m: int,
    n_steps: int,
    dim: int,
    out: int,
    cell_bound: float,
    out_bound: float,
    /,
) -> None: ...
def max_pooled(
    activations: int, best: int, where: int, words: int, places: int, n: int, stride: int, /
) -> None: ...
def max_pooled_back(
    x: int,
    kernels: int,
    g: int,
    where: int,
    dx: int,
    dkernels: int,
    words: int,
    size: int,
    n: int,
    stride: int,
    length: int,
    dim: int,
    /,
) -> None: ...
def limit_to(instruction_set: str | None, /) -> str: ...
def instruction_set() -> str: ...
