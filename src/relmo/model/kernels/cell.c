/* The LSTM cell in one pass over memory: σ, tanh, clip and products, for one step of one layer, and
 * its backward pass; what stands around an int8 matrix product: float32 to int8, int32 back to
 * float32; and max-pooled convolutions (convolution.h).
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

#include "convolution.h"

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

/* One sentence's cell: four gates from the input, the same four from the state, and biases. */
#define CELL_ROW(FROM_STATE)                                                                      \
    for (Py_ssize_t j = 0; j < dim; j++) {                                                        \
        float i = sigmoid_(x[j] + FROM_STATE(j) + b[j]);                                          \
        float f = sigmoid_(x[dim + j] + FROM_STATE(dim + j) + b[dim + j]);                        \
        float g = tanh_(x[2 * dim + j] + FROM_STATE(2 * dim + j) + b[2 * dim + j]);               \
        float o = sigmoid_(x[3 * dim + j] + FROM_STATE(3 * dim + j) + b[3 * dim + j]);            \
        float next = clip_(f * c[j] + i * g, bound);                                              \
        c[j] = next;                                                                              \
        m[j] = o * tanh_(next);                                                                   \
    }

INLINE void cell_row(const float *restrict x, const float *restrict s, const float *restrict b,
                     float *restrict c, float *restrict m, Py_ssize_t dim, float bound)
{
#define FLOAT(k) s[k]
    CELL_ROW(FLOAT)
}

/* The same where the state's part is an int8 product: int32, to be scaled by row and by column. */
INLINE void cell_row_int8(const float *restrict x, const int32_t *restrict s, float row_scale,
                          const float *restrict column_scales, const float *restrict b,
                          float *restrict c, float *restrict m, Py_ssize_t dim, float bound)
{
#define SCALED(k) ((float)s[k] * row_scale * column_scales[k])
    CELL_ROW(SCALED)
}

/* The cell while learning: the gates' values are kept in x, the new c and m in places of their own. */
INLINE void cell_row_kept(float *restrict x, const float *restrict s, const float *restrict b,
                          const float *restrict before, float *restrict c, float *restrict m,
                          Py_ssize_t dim, float bound)
{
    for (Py_ssize_t j = 0; j < dim; j++) {
        float i = sigmoid_(x[j] + s[j] + b[j]);
        float f = sigmoid_(x[dim + j] + s[dim + j] + b[dim + j]);
        float g = tanh_(x[2 * dim + j] + s[2 * dim + j] + b[2 * dim + j]);
        float o = sigmoid_(x[3 * dim + j] + s[3 * dim + j] + b[3 * dim + j]);
        float next = clip_(f * before[j] + i * g, bound);
        x[j] = i, x[dim + j] = f, x[2 * dim + j] = g, x[3 * dim + j] = o;
        c[j] = next;
        m[j] = o * tanh_(next);
    }
}

/* Backwards through it: from the gradients of m and of c (dc, which becomes that of the c before) to
 * those of the gates before σ and tanh (d). No gradient passes a c that was clipped. */
INLINE void cell_row_back(const float *restrict x, const float *restrict before,
                          const float *restrict c, const float *restrict dm, float *restrict dc,
                          float *restrict d, Py_ssize_t dim, float bound)
{
    for (Py_ssize_t j = 0; j < dim; j++) {
        float i = x[j], f = x[dim + j], g = x[2 * dim + j], o = x[3 * dim + j];
        float t = tanh_(c[j]);
        float free = f * before[j] + i * g;
        float inner = dc[j] + dm[j] * o * (1.0f - t * t);
        inner = free > bound ? 0.0f : inner;
        inner = free < -bound ? 0.0f : inner;
        d[j] = inner * g * i * (1.0f - i);
        d[dim + j] = inner * before[j] * f * (1.0f - f);
        d[2 * dim + j] = inner * i * (1.0f - g * g);
        d[3 * dim + j] = dm[j] * t * o * (1.0f - o);
        dc[j] = inner * f;
    }
}

/* Float32 to int8, the largest magnitude to 127; returns what one unit is worth. */
INLINE float quantize_row(const float *restrict x, int8_t *restrict q, Py_ssize_t dim)
{
    int32_t top = 0; /* magnitudes of floats order as their bits do */
    for (Py_ssize_t j = 0; j < dim; j++) {
        int32_t bits;
        memcpy(&bits, x + j, sizeof bits);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float largest;
    memcpy(&largest, &top, sizeof largest);
    float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (Py_ssize_t j = 0; j < dim; j++) {
        float rounded = x[j] * factor + 12582912.0f;
        q[j] = (int8_t)(int32_t)(rounded - 12582912.0f);
    }
    return largest / 127.0f;
}

INLINE void scale_row(const int32_t *restrict s, float row_scale,
                      const float *restrict column_scales, float *restrict y, Py_ssize_t dim,
                      float bound)
{
    for (Py_ssize_t j = 0; j < dim; j++)
        y[j] = clip_((float)s[j] * row_scale * column_scales[j], bound);
}

/* y (out) = weight (out, k) times x (k). All that counts here is reading the weights from memory
 * once; 16 partial sums are one or more vector registers. */
INLINE void times_one(const float *restrict weight, const float *restrict x, float *restrict y,
                      Py_ssize_t k, Py_ssize_t out)
{
    Py_ssize_t whole = k - k % 16;
    for (Py_ssize_t j = 0; j < out; j++, weight += k) {
        float sums[16] = {0.0f}, total = 0.0f;
        for (Py_ssize_t i = 0; i < whole; i += 16)
            for (int l = 0; l < 16; l++)
                sums[l] += weight[i + l] * x[i + l];
        for (int l = 0; l < 16; l++)
            total += sums[l];
        for (Py_ssize_t i = whole; i < k; i++)
            total += weight[i] * x[i];
        y[j] = total;
    }
}

struct one {
    const float *x, *recurrent, *projection, *bias; /* projection may be NULL */
    float *h, *c, *y, *s, *m;                       /* state in and out; outputs; room to work */
    Py_ssize_t n_steps, dim, out;
    float cell_bound, out_bound;
};

/* All steps that a lone sentence has left: one call, as one call per step would cost more. */
INLINE void read_one(const struct one *a)
{
    for (Py_ssize_t t = 0; t < a->n_steps; t++) {
        float *y = a->y + a->out * t;
        times_one(a->recurrent, a->h, a->s, a->out, 4 * a->dim);
        cell_row(a->x + 4 * a->dim * t, a->s, a->bias, a->c, a->m, a->dim, a->cell_bound);
        if (a->projection) {
            times_one(a->projection, a->m, y, a->dim, a->out);
            for (Py_ssize_t i = 0; i < a->out; i++)
                y[i] = clip_(y[i], a->out_bound);
        } else {
            memcpy(y, a->m, sizeof(float) * a->out);
        }
        memcpy(a->h, y, sizeof(float) * a->out);
    }
}

/* Words whose characters' vectors are `size` numbers each; rows of g and where are `stride` apart. */
struct back {
    const float *x, *kernels, *g;
    const int32_t *where;
    float *dx, *dkernels;
    Py_ssize_t words, size, n, stride, length, dim;
};

/* Every loop over rows, compiled for one instruction set. */
#define VARIANT(isa, target)                                                                      \
    target static void cell_##isa(const float *x, const float *s, const float *b, float *c,       \
                                  float *m, Py_ssize_t n, Py_ssize_t dim, float bound)            \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            cell_row(x + 4 * dim * r, s + 4 * dim * r, b, c + dim * r, m + dim * r, dim, bound);  \
    }                                                                                             \
    target static void cell_int8_##isa(const float *x, const int32_t *s, const float *row_scales, \
                                       const float *column_scales, const float *b, float *c,      \
                                       float *m, Py_ssize_t n, Py_ssize_t dim, float bound)       \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            cell_row_int8(x + 4 * dim * r, s + 4 * dim * r, row_scales[r], column_scales, b,      \
                          c + dim * r, m + dim * r, dim, bound);                                  \
    }                                                                                             \
    target static void cell_kept_##isa(float *x, const float *s, const float *b,                  \
                                       const float *before, float *c, float *m, Py_ssize_t n,     \
                                       Py_ssize_t dim, float bound)                               \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            cell_row_kept(x + 4 * dim * r, s + 4 * dim * r, b, before + dim * r, c + dim * r,     \
                          m + dim * r, dim, bound);                                               \
    }                                                                                             \
    target static void cell_back_##isa(const float *x, const float *before, const float *c,       \
                                       const float *dm, float *dc, float *d, Py_ssize_t n,        \
                                       Py_ssize_t dim, float bound)                               \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            cell_row_back(x + 4 * dim * r, before + dim * r, c + dim * r, dm + dim * r,           \
                          dc + dim * r, d + 4 * dim * r, dim, bound);                             \
    }                                                                                             \
    target static void quantize_##isa(const float *x, int8_t *q, float *row_scales, Py_ssize_t n, \
                                      Py_ssize_t dim)                                             \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            row_scales[r] = quantize_row(x + dim * r, q + dim * r, dim);                          \
    }                                                                                             \
    target static void scale_##isa(const int32_t *s, const float *row_scales,                     \
                                   const float *column_scales, float *y, Py_ssize_t n,            \
                                   Py_ssize_t dim, float bound)                                   \
    {                                                                                             \
        for (Py_ssize_t r = 0; r < n; r++)                                                        \
            scale_row(s + dim * r, row_scales[r], column_scales, y + dim * r, dim, bound);        \
    }                                                                                             \
    target static void read_one_##isa(const struct one *a) { read_one(a); }                       \
    target static void max_pooled_##isa(const float *activations, float *best, int32_t *where,    \
                                       Py_ssize_t words, Py_ssize_t places, Py_ssize_t n,         \
                                       Py_ssize_t stride)                                         \
    {                                                                                             \
        for (Py_ssize_t w = 0; w < words; w++)                                                    \
            max_pooled_row(activations + n * places * w, best + stride * w, where + stride * w,   \
                          places, n);                                                             \
    }                                                                                             \
    target static void max_pooled_back_##isa(const struct back *a)                                \
    {                                                                                             \
        for (Py_ssize_t w = 0; w < a->words; w++)                                                 \
            max_pooled_row_back(a->x + a->size * w, a->kernels, a->g + a->stride * w,             \
                               a->where + a->stride * w, a->dx + a->size * w, a->dkernels, a->n,  \
                               a->length, a->dim);                                                \
    }                                                                                             \
    static const struct variant isa = {cell_##isa, cell_int8_##isa, cell_kept_##isa,              \
                                       cell_back_##isa, quantize_##isa, scale_##isa,              \
                                       read_one_##isa, max_pooled_##isa, max_pooled_back_##isa};

struct variant {
    void (*cell)(const float *, const float *, const float *, float *, float *, Py_ssize_t,
                 Py_ssize_t, float);
    void (*cell_int8)(const float *, const int32_t *, const float *, const float *, const float *,
                      float *, float *, Py_ssize_t, Py_ssize_t, float);
    void (*cell_kept)(float *, const float *, const float *, const float *, float *, float *,
                      Py_ssize_t, Py_ssize_t, float);
    void (*cell_back)(const float *, const float *, const float *, const float *, float *, float *,
                      Py_ssize_t, Py_ssize_t, float);
    void (*quantize)(const float *, int8_t *, float *, Py_ssize_t, Py_ssize_t);
    void (*scale)(const int32_t *, const float *, const float *, float *, Py_ssize_t, Py_ssize_t,
                  float);
    void (*read_one)(const struct one *);
    void (*max_pooled)(const float *, float *, int32_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t,
                      Py_ssize_t);
    void (*max_pooled_back)(const struct back *);
};

VARIANT(baseline, )
#if defined(__x86_64__) && defined(__GNUC__)
VARIANT(avx2, __attribute__((target("avx2,fma"))))
VARIANT(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))))
#endif

static const struct variant *chosen = &baseline;
static const char *instruction_set = "baseline";

/* Take the best variant that this processor has, up to the one named; every one for NULL. */
static void choose_variant(const char *limit)
{
    chosen = &baseline;
    instruction_set = "baseline";
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (limit && !strcmp(limit, "baseline"))
        return;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        chosen = &avx2;
        instruction_set = "AVX2";
    }
    if (limit && !strcmp(limit, "AVX2"))
        return;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        chosen = &avx512;
        instruction_set = "AVX-512";
    }
#else
    (void)limit;
#endif
}

#define AT(type, address) ((type *)(uintptr_t)(address))
typedef unsigned long long address;

static PyObject *cell(PyObject *self, PyObject *args)
{
    address x, s, b, c, m;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKnnf", &x, &s, &b, &c, &m, &n, &dim, &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->cell(AT(float, x), AT(float, s), AT(float, b), AT(float, c), AT(float, m), n, dim,
                 bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *cell_int8(PyObject *self, PyObject *args)
{
    address x, s, rows, columns, b, c, m;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKKnnf", &x, &s, &rows, &columns, &b, &c, &m, &n, &dim,
                          &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->cell_int8(AT(float, x), AT(int32_t, s), AT(float, rows), AT(float, columns),
                      AT(float, b), AT(float, c), AT(float, m), n, dim, bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *cell_kept(PyObject *self, PyObject *args)
{
    address x, s, b, before, c, m;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKnnf", &x, &s, &b, &before, &c, &m, &n, &dim, &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->cell_kept(AT(float, x), AT(float, s), AT(float, b), AT(float, before), AT(float, c),
                      AT(float, m), n, dim, bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *cell_back(PyObject *self, PyObject *args)
{
    address x, before, c, dm, dc, d;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKnnf", &x, &before, &c, &dm, &dc, &d, &n, &dim, &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->cell_back(AT(float, x), AT(float, before), AT(float, c), AT(float, dm), AT(float, dc),
                      AT(float, d), n, dim, bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *quantize(PyObject *self, PyObject *args)
{
    address x, q, rows;
    Py_ssize_t n, dim;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKnn", &x, &q, &rows, &n, &dim))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->quantize(AT(float, x), AT(int8_t, q), AT(float, rows), n, dim);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *scale(PyObject *self, PyObject *args)
{
    address s, rows, columns, y;
    Py_ssize_t n, dim;
    float bound;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKnnf", &s, &rows, &columns, &y, &n, &dim, &bound))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->scale(AT(int32_t, s), AT(float, rows), AT(float, columns), AT(float, y), n, dim,
                  bound);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *one_sentence(PyObject *self, PyObject *args)
{
    address x, recurrent, projection, bias, h, c, y, s, m;
    struct one a;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKnnnff", &x, &recurrent, &projection, &bias, &h, &c, &y,
                          &s, &m, &a.n_steps, &a.dim, &a.out, &a.cell_bound, &a.out_bound))
        return NULL;
    a.x = AT(float, x), a.recurrent = AT(float, recurrent), a.projection = AT(float, projection);
    a.bias = AT(float, bias);
    a.h = AT(float, h), a.c = AT(float, c), a.y = AT(float, y);
    a.s = AT(float, s), a.m = AT(float, m);
    Py_BEGIN_ALLOW_THREADS
    chosen->read_one(&a);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *max_pooled(PyObject *self, PyObject *args)
{
    address activations, best, where;
    Py_ssize_t words, places, n, stride;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKnnnn", &activations, &best, &where, &words, &places, &n, &stride))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    chosen->max_pooled(AT(float, activations), AT(float, best), AT(int32_t, where), words, places, n,
                      stride);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *max_pooled_back(PyObject *self, PyObject *args)
{
    address x, kernels, g, where, dx, dkernels;
    struct back a;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKnnnnnn", &x, &kernels, &g, &where, &dx, &dkernels, &a.words,
                          &a.size, &a.n, &a.stride, &a.length, &a.dim))
        return NULL;
    a.x = AT(float, x), a.kernels = AT(float, kernels), a.g = AT(float, g);
    a.where = AT(int32_t, where), a.dx = AT(float, dx), a.dkernels = AT(float, dkernels);
    Py_BEGIN_ALLOW_THREADS
    chosen->max_pooled_back(&a);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *limit_to(PyObject *self, PyObject *args)
{
    const char *name;
    (void)self;
    if (!PyArg_ParseTuple(args, "z", &name))
        return NULL;
    choose_variant(name);
    return PyUnicode_FromString(instruction_set);
}

static PyObject *describe(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyUnicode_FromString(instruction_set);
}

/* Arguments are addresses of contiguous arrays, then their rows and columns. */
static PyMethodDef methods[] = {
    {"cell", cell, METH_VARARGS, "cell(x, s, b, c, m, n, dim, bound): updates c, fills m"},
    {"cell_int8", cell_int8, METH_VARARGS,
     "cell_int8(x, s, row_scales, column_scales, b, c, m, n, dim, bound): the same, s is int32"},
    {"cell_kept", cell_kept, METH_VARARGS,
     "cell_kept(x, s, b, before, c, m, n, dim, bound): puts the gates' values into x, fills c and m"},
    {"cell_back", cell_back, METH_VARARGS,
     "cell_back(gates, before, c, dm, dc, d, n, dim, bound): updates dc, fills d"},
    {"quantize", quantize, METH_VARARGS, "quantize(x, q, row_scales, n, dim): fills q and scales"},
    {"scale", scale, METH_VARARGS,
     "scale(s, row_scales, column_scales, y, n, dim, bound): int32 to clipped float32"},
    {"read_one", one_sentence, METH_VARARGS,
     "read_one(x, recurrent, projection, bias, h, c, y, s, m, n_steps, dim, out, cell_bound, "
     "out_bound): all steps of one sentence; updates h and c, fills y"},
    {"max_pooled", max_pooled, METH_VARARGS,
     "max_pooled(activations, best, where, words, places, n, stride): fills best and where"},
    {"max_pooled_back", max_pooled_back, METH_VARARGS,
     "max_pooled_back(x, kernels, g, where, dx, dkernels, words, size, n, stride, length, dim): adds "
     "to dx and dkernels"},
    {"limit_to", limit_to, METH_VARARGS,
     "limit_to(\"AVX2\"), limit_to(\"baseline\"), limit_to(None): what is in use from now on"},
    {"instruction_set", describe, METH_NOARGS, "what the loops in use were compiled for"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cell", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cell(void)
{
    choose_variant(NULL);
    return PyModule_Create(&module);
}
