/* The LSTM cell in one pass over memory: σ, tanh, clip and products, for one step of one layer.
 *
 * Eager PyTorch spends a dozen passes on this, more time than the matrix products of a small model.
 * Plain C that the compiler vectorises; on x86-64 it is compiled for several instruction sets and
 * the best one is chosen when the module is loaded. Accurate to a few units in the last place.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* e^x for x in [-87, 88], where float32 neither overflows nor loses precision: 2^n · e^r. */
INLINE float exp_(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f + 12582912.0f; /* adding 1.5·2^23 rounds to an integer */
    n = n - 12582912.0f;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

INLINE float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

/* A polynomial near zero, where 1 − 2/(e^2x + 1) would lose digits. */
INLINE float tanh_(float x)
{
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near = p * z * x + x;
    float a = x < 0.0f ? -x : x;
    float far = 1.0f - 2.0f / (exp_(2.0f * a) + 1.0f);
    far = x < 0.0f ? -far : far;
    return a < 0.625f ? near : far;
}

/* A comparison with NaN is false, so NaN comes through. */
INLINE float clip_(float x, float bound)
{
    x = x < -bound ? -bound : x;
    return x > bound ? bound : x;
}

/* One sentence's cell: four gates from the input, the same four from the state. */
INLINE void cell_row(const float *restrict x, const float *restrict s, float *restrict c,
                     float *restrict m, Py_ssize_t dim, float bound)
{
    for (Py_ssize_t j = 0; j < dim; j++) {
        float i = sigmoid_(x[j] + s[j]);
        float f = sigmoid_(x[dim + j] + s[dim + j]);
        float g = tanh_(x[2 * dim + j] + s[2 * dim + j]);
        float o = sigmoid_(x[3 * dim + j] + s[3 * dim + j]);
        float next = clip_(f * c[j] + i * g, bound);
        c[j] = next;
        m[j] = o * tanh_(next);
    }
}

#define CELL(name, target)                                                                        \
    target static void name(const float *x, const float *s, float *c, float *m, Py_ssize_t n,     \
                            Py_ssize_t dim, float bound)                                          \
    {                                                                                             \
        for (Py_ssize_t row = 0; row < n; row++)                                                  \
            cell_row(x + 4 * dim * row, s + 4 * dim * row, c + dim * row, m + dim * row, dim,     \
                     bound);                                                                      \
    }

CELL(cell_baseline, )
static void (*cell)(const float *, const float *, float *, float *, Py_ssize_t, Py_ssize_t,
                    float) = cell_baseline;
#if defined(__aarch64__)
static const char *instruction_set = "AArch64";
#else
static const char *instruction_set = "baseline";
#endif

#if defined(__x86_64__) && defined(__GNUC__)
CELL(cell_avx2, __attribute__((target("avx2,fma"))))
CELL(cell_avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))))

static void choose_cell(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        cell = cell_avx512;
        instruction_set = "AVX-512";
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        cell = cell_avx2;
        instruction_set = "AVX2";
    }
}
#else
static void choose_cell(void) {}
#endif

static PyObject *cell_step(PyObject *self, PyObject *args)
{
    unsigned long long x, s, c, m;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKnnf", &x, &s, &c, &m, &n, &dim, &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    cell((const float *)(uintptr_t)x, (const float *)(uintptr_t)s, (float *)(uintptr_t)c,
         (float *)(uintptr_t)m, n, dim, bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *describe(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyUnicode_FromString(instruction_set);
}

static PyMethodDef methods[] = {
    {"cell", cell_step, METH_VARARGS,
     "cell(from_input, from_state, c, m, n, dim, bound): addresses of float32 arrays (n, 4*dim), "
     "(n, 4*dim), (n, dim) and (n, dim); updates c, fills m."},
    {"instruction_set", describe, METH_NOARGS, "What the loop was compiled for, on this machine."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cell", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cell(void)
{
    choose_cell();
    return PyModule_Create(&module);
}
