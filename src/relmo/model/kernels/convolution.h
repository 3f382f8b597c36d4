/* Convolutions over a word's characters, of which only the strongest answer of a filter counts: so
 * only one window a word and filter gets a gradient, where PyTorch would give one to all of them. */

/* answers (places, n) of one word → best (n) and the place where it was found. */
INLINE void strongest_row(const float *restrict answers, float *restrict best,
                          int32_t *restrict where, Py_ssize_t places, Py_ssize_t n)
{
    for (Py_ssize_t f = 0; f < n; f++) {
        best[f] = answers[f];
        where[f] = 0;
    }
    for (Py_ssize_t p = 1; p < places; p++) {
        const float *row = answers + n * p;
        for (Py_ssize_t f = 0; f < n; f++) {
            where[f] = row[f] > best[f] ? (int32_t)p : where[f];
            best[f] = row[f] > best[f] ? row[f] : best[f];
        }
    }
}

INLINE void add_scaled(float *restrict to, const float *restrict from, float factor, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* One word back: its characters' vectors x (., dim), the filters' kernels (n, length), gradients g (n)
 * of the strongest answers; adds to dx and dkernels. A window is `length` numbers from where·dim on. */
INLINE void strongest_row_back(const float *x, const float *kernels, const float *g,
                               const int32_t *where, float *dx, float *dkernels, Py_ssize_t n,
                               Py_ssize_t length, Py_ssize_t dim)
{
    for (Py_ssize_t f = 0; f < n; f++) {
        if (g[f] == 0.0f) /* as for every filter that the activation has switched off */
            continue;
        add_scaled(dkernels + length * f, x + dim * where[f], g[f], length);
        add_scaled(dx + dim * where[f], kernels + length * f, g[f], length);
    }
}
