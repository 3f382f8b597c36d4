/* Max-pooled convolutions over the characters of a word. Only the window with the maximum gets a
 * gradient, one per word and filter, where PyTorch would give one to every window. */

/* activations (places, n) of one word → their maxima best (n), and the places of these. */
INLINE void max_pooled_row(const float *restrict activations, float *restrict best,
                           int32_t *restrict where, Py_ssize_t places, Py_ssize_t n)
{
    for (Py_ssize_t f = 0; f < n; f++) {
        best[f] = activations[f];
        where[f] = 0;
    }
    for (Py_ssize_t p = 1; p < places; p++) {
        const float *row = activations + n * p;
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

/* Backward pass of one word: its characters' vectors x (., dim), the filters' kernels (n, length),
 * gradients g (n) of the maxima; adds to dx and dkernels. A window is `length` numbers from
 * where·dim on. */
INLINE void max_pooled_row_back(const float *x, const float *kernels, const float *g,
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
