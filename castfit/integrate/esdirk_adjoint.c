/* Adjoint states of the steps that esdirk.c takes: gradients of sums over one trajectory, whatever they are by.

   Compiled with esdirk.c, behind it.  Bars are derivatives of a sum; those of n_a sums are carried along together.
   A step as of esdirk.c, read backwards: let ybar be that of y_1 and Kbar_s that of the rates at its end, which the
   step behind it begins with.  Outputs inside the step add to ybar, to y_0's and to all Kbar_i.  Then, i = s ... 2,

       M_i^T (eta, H gamma zeta) = (Kbar_i + H gamma Ybar_i, 0)             Ybar_s = ybar, the others' are zero
       rbar = Ybar_i + f_x^T eta + g_x^T zeta
       y_0's  += rbar,      Kbar_j += H a_ij rbar  (j < i),      Hbar += sum_{j<=i} a_ij K_j . rbar
       pbar   += f_p^T eta + g_p^T zeta,      t_i's  += f_t . eta + g_t . zeta

   which is the transposed recursion of the directions, operation by operation: a sum's derivative along a direction is
   the same number from either side but for rounding.

   Where a step's stages are is known before, so that their M_i, of one pattern, are factorized side by side: an operation
   of the elimination is one on as many numbers (`many`).  Where one of them needs other pivots it is factorized alone.

   Stages are those of an integration that kept its steps; where there is none, the lane is integrated once more, and
   its steps are kept as long as the lane takes: (s + 1) n + 6 numbers each.
*/
#define TOGETHER 8 /* stages at most, padded: MOST_STAGES */
#define AT_ONCE 64      /* sums at most whose bars are carried back together, so that they fit in a cache */
#define CORRECTIONS 5   /* of what rough factors leave, at most, ... */
#define CORRECTED 1e-14 /* ... to this */

typedef double many __attribute__((vector_size(8 * TOGETHER), aligned(8), may_alias));
typedef int64_t flags __attribute__((vector_size(8 * TOGETHER), aligned(8), may_alias));

/* What is differentiated, and where gradients go. */
typedef struct {
    int64_t n_a;
    const double *seeds;                /* (L, m, n_x, n_a): derivatives of the sums by the outputs */
    double *x0, *p, *start, *duration;  /* (L, n_x, n_a), (L, n_p, n_a), (L, n_a), (L, n_a) */
    int64_t most;                       /* numbers that the steps of one lane may take */
} Sums;

/* Of one lane, and of `count` sums from the one `from` on; na: count, padded if there are several. */
typedef struct {
    int64_t na, from, count;
    double *y, *y0, *k, *v, *eta, *r, *left, *p, *start, *duration; /* left: (3, n, na), of what is corrected */
} Bars;

/* What is known of a step's stages, one after the other: slopes, and factors of those matrices that are foreseen. */
typedef struct {
    double *jacobian, *by_p, *by_t; /* (TOGETHER, jacobian_nnz), (TOGETHER, slope_nnz), (TOGETHER, n) */
    double *sparse, *inverse;       /* (TOGETHER, sparse), (TOGETHER, n) */
    many *lu, *inverses, *largest;  /* all at once: (sparse,), (n,), (n,) */
    flags foreseen;
} Stages;

static inline many size_of(many v) { return (many)((flags)v & INT64_MAX); }

static inline many larger_of(many a, many b)
{
    const flags first = a > b;
    return (many)(((flags)a & first) | ((flags)b & ~first));
}

/* Factorize the matrices in `lu` in the order chosen beforehand; tell with which that loses no digits. */
static void factorize_together(const Model *model, Stages *of, int64_t n, const double *restrict unit)
{
    const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
    const int32_t *restrict earlier = model->earlier, *restrict target = model->targets;
    const double limit = n > MANY_ROWS ? LARGEST_OF_MANY : LARGEST_MULTIPLIER;
    const int64_t tail = model->tail;
    many *lu = of->lu, *largest = of->largest, *inverses = of->inverses;
    flags good = (flags){0} == 0;
    for (int64_t k = 0; k < n; k++) {
        many most = {0.0};
        for (int32_t q = begin[k]; q < begin[k + 1]; q++) most = larger_of(size_of(lu[q]) * unit[at[q]], most);
        largest[k] = most;
        const int32_t listed = k < tail ? pivot[k] : begin[k + 1] - (int32_t)(n - tail);
        for (int32_t q = begin[k]; q < listed; q++) {
            const int32_t i = earlier[q];
            const many factor = lu[q] *= inverses[i];
            good &= size_of(factor) * largest[i] <= limit * most;
            for (int32_t u = pivot[i] + 1; u < begin[i + 1]; u++) lu[*target++] -= factor * lu[u];
        }
        if (k >= tail) continue;
        const many here = size_of(lu[pivot[k]]);
        good &= (here > 0.0) & (here < INFINITY);
        inverses[k] = 1.0 / lu[pivot[k]];
    }
    for (int64_t first = tail; first < n; first += PANEL) {
        const int64_t last = first + PANEL < n ? first + PANEL : n;
        for (int64_t k = first; k < n; k++) {
            many *row = lu + begin[k + 1] - n, factors[PANEL];
            const int64_t stop = k < last ? k : last;
            for (int64_t i = first; i < stop; i++) {
                const many *by = lu + begin[i + 1] - n;
                const many factor = factors[i - first] = row[i] *= inverses[i];
                good &= size_of(factor) * largest[i] <= limit * largest[k];
                for (int64_t u = i + 1; u < (k < last ? n : last); u++) row[u] -= factor * by[u];
            }
            if (k < last) {
                good &= (size_of(row[k]) > 0.0) & (size_of(row[k]) < INFINITY);
                inverses[k] = 1.0 / row[k];
            } else {
                const many *by[PANEL];
                for (int64_t i = 0; i < PANEL; i++) by[i] = lu + begin[first + i + 1] - n;
                for (int64_t u = last; u < n; u++) PANEL_PRODUCTS(many);
            }
        }
    }
    of->foreseen = good;
}

/* Add value * b to a, (count,) each. */
static inline void add(double *restrict a, double value, const double *restrict b, int64_t count)
{
    int64_t d = 0;
    for (; d + WIDE <= count; d += WIDE) *(wide *)(a + d) += value * *(const wide *)(b + d);
    for (; d < count; d++) a[d] += value * b[d];
}

/* Add value_q * from_{b_q} to to_{a_q}, (na,) each, for every one of `count` entries q of a matrix. */
static void spread(double *restrict to, const int64_t *a, const double *value, const double *restrict from,
                   const int64_t *b, int64_t count, int64_t na)
{
    if (na == 1)
        for (int64_t q = 0; q < count; q++) to[a[q]] += value[q] * from[b[q]];
    else
        for (int64_t q = 0; q < count; q++) add(to + a[q] * na, value[q], from + b[q] * na, na);
}

/* Solve M^T x = b for na right-hand sides (n, na), which a compiler knows or not; b is lost. */
static inline __attribute__((always_inline)) void solve_transposed_for(const Factors *of, double *restrict b,
                                                                       double *restrict x, const int64_t na)
{
    const int64_t n = of->n;
    if (of->foreseen) {
        const Model *model = of->model;
        const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
        const double *restrict lu = of->sparse;
        for (int64_t k = 0; k < n; k++) {
            double *own = b + at[pivot[k]] * na;
            for (int64_t d = 0; d < na; d++) own[d] *= of->inverse[k];
            for (int32_t q = pivot[k] + 1; q < begin[k + 1]; q++) add(b + at[q] * na, -lu[q], own, na);
        }
        for (int64_t k = n - 1; k >= 0; k--) {
            double *own = x + model->pivot_row[k] * na;
            memcpy(own, b + at[pivot[k]] * na, sizeof(double) * na);
            for (int32_t q = begin[k]; q < pivot[k]; q++) add(b + at[q] * na, -lu[q], own, na);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t *at = of->u_at + i * n;
        const double *row = of->lu + i * n;
        double *own = b + i * na;
        for (int64_t d = 0; d < na; d++) own[d] *= of->inverse[i];
        for (int64_t q = 0; q < of->u_n[i]; q++) add(b + at[q] * na, -row[at[q]], own, na);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t *at = of->l_at + i * n;
        const double *row = of->lu + i * n;
        double *own = x + of->order[i] * na;
        memcpy(own, b + i * na, sizeof(double) * na);
        for (int64_t q = 0; q < of->l_n[i]; q++) add(b + at[q] * na, -row[at[q]], own, na);
    }
}

static void solve_transposed(const Factors *of, double *restrict b, double *restrict x, int64_t na)
{
    if (na == 1) solve_transposed_for(of, b, x, 1);
    else if (na == WIDE) solve_transposed_for(of, b, x, WIDE);
    else solve_transposed_for(of, b, x, na);
}

/* Solve M^T eta = v for the bars by rough factors, and correct it by what is left; return whether that leaves nothing,
   relatively to the parts that v is the sum of; v is lost if so. */
static int solve_refined(const Factors *of, Bars *bars, const double *j, double g)
{
    const Model *model = of->model;
    const int64_t n = of->n, n_x = model->n_x, na = bars->na, size = n * na;
    double *v = bars->v, *eta = bars->eta, *left = bars->left, *part = left + size, *more = part + size;
    memset(eta, 0, sizeof(double) * size);
    memcpy(left, v, sizeof(double) * size);
    for (int it = 0; it < CORRECTIONS; it++) {
        solve_transposed(of, left, more, na);
        double worst = 0.0;
        for (int64_t q = 0; q < size; q++) eta[q] += more[q];
        for (int64_t q = 0; q < size; q++) {
            left[q] = v[q] - (q < n_x * na ? eta[q] : 0.0);
            part[q] = fabs(v[q]) + (q < n_x * na ? fabs(eta[q]) : 0.0);
        }
        for (int64_t q = 0; q < model->jacobian_nnz; q++) {
            const double value = (model->jacobian_row[q] < n_x ? g : 1.0) * j[q];
            const int64_t to = model->jacobian_col[q] * na, from = model->jacobian_row[q] * na;
            for (int64_t d = 0; d < na; d++) {
                left[to + d] += value * eta[from + d];
                part[to + d] += fabs(value * eta[from + d]);
            }
        }
        for (int64_t q = 0; q < size; q++) {
            const double share = part[q] > 0.0 ? fabs(left[q]) / part[q] : 0.0;
            if (!(share <= worst)) worst = share;
        }
        if (worst <= CORRECTED) return 1;
    }
    return 0;
}

/* Add what rates and algebraic equations, weighted by eta (n, na), say about p and about time tau. */
static void add_slopes(Work *w, Bars *bars, double tau, const double *eta, const double *by_p, const double *by_t)
{
    const Model *model = w->model;
    const int64_t na = bars->na;
    spread(bars->p, model->slope_col, by_p, eta, model->slope_row, model->slope_nnz, na);
    for (int64_t row = 0; row < w->n; row++) {
        if (by_t[row] == 0.0) continue;
        add(bars->start, by_t[row], eta + row * na, na);
        add(bars->duration, tau * by_t[row], eta + row * na, na);
    }
}

/* Let the outputs of a step from tau to tau + h add to its bars; return the first of them. */
static int64_t read_outputs(Work *w, Bars *bars, const Sums *sums, int64_t lane, int64_t next, int64_t first, double tau,
                            double h, double before)
{
    const Task *task = w->task;
    const int64_t n = w->n, n_x = w->model->n_x, na = bars->na, s = w->method->stages, size = n_x * na;
    const double H = h * task->duration[lane], end = tau + h;
    for (; next > first && task->grid[next - 1] > before; next--) {
        const double th = end == task->grid[next - 1] ? 1.0 : (task->grid[next - 1] - tau) / h, om = 1.0 - th;
        const double *seed = sums->seeds + (lane * task->m + next - 1) * n_x * sums->n_a + bars->from;
        double *wide_seed = bars->v;
        memset(wide_seed, 0, sizeof(double) * size);
        for (int64_t i = 0; i < n_x; i++) memcpy(wide_seed + i * na, seed + i * sums->n_a, sizeof(double) * bars->count);
        if (th == 1.0) { add(bars->y, 1.0, wide_seed, size); continue; }
        double coefficient[MOST_STAGES];
        for (int64_t j = 0; j < s; j++) coefficient[j] = th * th * om * om * w->method->dense[j];
        coefficient[0] += th * om * om;
        coefficient[s - 1] -= th * th * om;
        add(bars->y0, om * om * (1 + 2 * th), wide_seed, size);
        add(bars->y, th * th * (3 - 2 * th), wide_seed, size);
        for (int64_t j = 0; j < s; j++) add(bars->k + j * size, H * coefficient[j], wide_seed, size);
        for (int64_t i = 0; i < n_x; i++) {
            double rates = 0.0;
            for (int64_t j = 0; j < s; j++) rates += coefficient[j] * w->k[j * n + i];
            add(bars->duration, h * rates, wide_seed + i * na, na);
        }
    }
    return next;
}

/* When stage i is, if the step goes from tau to `to`. */
static inline double stage_time(const Work *w, int64_t i, double tau, double h, double to)
{
    return i == w->method->stages - 1 ? to : tau + w->method->c[i] * h;
}

/* Look at all stages y (s, n) of a step, and factorize their matrices where that is foreseen; return as `pull_stage`. */
static int look_at_stages(Work *w, Stages *of, int64_t lane, double tau, double h, double to, const double *y, const double *unit)
{
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x, nnz = model->jacobian_nnz, s = w->method->stages;
    const double g = h * w->task->duration[lane] * w->method->gamma;
    const int foreseen = g != 0.0 && model->sparse > 0;
    if (foreseen) {
        memset(of->lu, 0, sizeof(many) * model->sparse);
        for (int64_t i = 0; i < n_x; i++) of->lu[model->one[i]] += 1.0;
        if (n > n_x) /* places beyond the stages get regular matrices too */
            for (int64_t k = 0; k < n; k++)
                for (int64_t i = s - 1; i < TOGETHER; i++) ((double *)(of->lu + model->pivot[k]))[i] = 1.0;
    }
    for (int64_t i = 1; i < s; i++) {
        double *j = of->jacobian + i * nnz, *lu = (double *)of->lu + i - 1;
        place(w, lane, stage_time(w, i, tau, h, to), y + i * n);
        call(&model->slopes);
        if (not_finite(model->slope_j, nnz) >= 0) return NO_SLOPES;
        memcpy(j, model->slope_j, sizeof(double) * nnz);
        memcpy(of->by_p + i * model->slope_nnz, model->by_p, sizeof(double) * model->slope_nnz);
        memcpy(of->by_t + i * n, model->by_t, sizeof(double) * n);
        for (int64_t q = 0; q < nnz && foreseen; q++)
            lu[TOGETHER * model->entry[q]] -= (model->jacobian_row[q] < n_x ? g : 1.0) * j[q];
    }
    of->foreseen = (flags){0};
    if (!foreseen) return FINE;
    factorize_together(model, of, n, unit);
    for (int64_t i = 1; i < s; i++) {
        const double *lu = (const double *)of->lu + i - 1, *inverse = (const double *)of->inverses + i - 1;
        for (int64_t q = 0; q < model->sparse; q++) of->sparse[i * model->sparse + q] = lu[TOGETHER * q];
        for (int64_t k = 0; k < n; k++) of->inverse[i * n + k] = inverse[TOGETHER * k];
    }
    return FINE;
}

/* Carry the bars back over stage i at time tau; return FINE, NO_SLOPES, or STAGE_SINGULAR where M_i is. */
static int pull_stage(Work *w, Bars *bars, const Stages *stages, int64_t lane, int64_t i, double tau, double h, const double *unit)
{
    const Model *model = w->model;
    const Tableau *method = w->method;
    const int64_t n = w->n, n_x = model->n_x, na = bars->na, size = n_x * na, s = method->stages;
    const double H = h * w->task->duration[lane], g = H * method->gamma, *a = method->a + i * s;
    const double *jacobian = stages->jacobian + i * model->jacobian_nnz;
    double *eta = bars->eta, *r = bars->r;
    memcpy(bars->v, bars->k + i * size, sizeof(double) * size);
    memset(bars->v + size, 0, sizeof(double) * (n - n_x) * na);
    memset(r, 0, sizeof(double) * n * na);
    if (i == s - 1) {
        add(bars->v, g, bars->y, size);
        memcpy(r, bars->y, sizeof(double) * size);
    }
    if (g == 0.0) /* of an explicit stage: M is the identity */
        memcpy(eta, bars->v, sizeof(double) * size);
    else {
        Factors own = {.model = model, .n = n, .foreseen = 1, .sparse = stages->sparse + i * model->sparse,
                       .inverse = stages->inverse + i * n};
        if (!stages->foreseen[i - 1]) {
            if (!factorize_step(&w->own, model, jacobian, g, unit, ROUGH)) return STAGE_SINGULAR;
            own = w->own;
        }
        if (own.rough && !solve_refined(&own, bars, jacobian, g)) {
            if (!factorize_step(&w->own, model, jacobian, g, unit, ACCURATE)) return STAGE_SINGULAR;
            own = w->own;
        }
        if (!own.rough) solve_transposed(&own, bars->v, eta, na);
        for (int64_t q = size; q < n * na; q++) eta[q] /= g;
    }
    spread(r, model->jacobian_col, jacobian, eta, model->jacobian_row, model->jacobian_nnz, na);
    add_slopes(w, bars, tau, eta, stages->by_p + i * model->slope_nnz, stages->by_t + i * n);
    add(bars->y0, 1.0, r, size);
    for (int64_t j = 0; j < i; j++) add(bars->k + j * size, H * a[j], r, size);
    for (int64_t row = 0; row < n_x; row++) {
        double sum = 0.0;
        for (int64_t j = 0; j <= i; j++) sum += a[j] * w->k[j * n + row];
        add(bars->duration, h * sum, r + row * na, na);
    }
    return FINE;
}

/* Carry the bars back over K_1 where it was not a last stage before; return as `pull_stage` does. */
static int pull_rates(Work *w, Bars *bars, int64_t lane, double tau, const double *y, const double *unit)
{
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x, na = bars->na, size = n_x * na;
    double *eta = bars->eta, *v = bars->v;
    place(w, lane, tau, y);
    call(&model->slopes);
    if (not_finite(model->slope_j, model->jacobian_nnz) >= 0) return NO_SLOPES;
    memset(v, 0, sizeof(double) * n * na);
    for (int64_t q = 0; q < model->jacobian_nnz; q++)
        if (model->jacobian_row[q] < n_x)
            add(v + model->jacobian_col[q] * na, model->slope_j[q], bars->k + model->jacobian_row[q] * na, na);
    if (n > n_x) { /* M of a stage of length zero */
        if (!factorize_step(&w->own, model, model->slope_j, 0.0, unit, ACCURATE)) return STAGE_SINGULAR;
        solve_transposed(&w->own, v, eta, na);
        add(bars->y0, 1.0, eta, size);
    } else
        add(bars->y0, 1.0, v, size);
    memcpy(eta, bars->k, sizeof(double) * size);
    add_slopes(w, bars, tau, eta, model->by_p, model->by_t);
    memset(bars->k, 0, sizeof(double) * size);
    return FINE;
}

/* Carry the bars of one lane back over all of its steps, which begin at `at`; return as `pull_stage` does. */
static int pull(Work *w, Bars *bars, Stages *stages, const Sums *sums, int64_t lane, const double *at, int64_t steps)
{
    const Task *task = w->task;
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x, na = bars->na, n_a = sums->n_a, size = n_x * na;
    const int64_t stride = KEPT_HEAD + (w->stages + 1) * n, first = task->grid[0] == 0.0;
    const double *unit = task->unit + lane * n;
    double *const y = w->y, *const k = w->k;
    int64_t next = task->m;
    int why = FINE;
    memcpy(model->p, task->p + lane * model->n_p, sizeof(double) * model->n_p);
    memset(bars->y, 0, sizeof(double) * size);
    memset(bars->k, 0, sizeof(double) * size * w->stages);
    memset(bars->p, 0, sizeof(double) * model->n_p * na);
    memset(bars->start, 0, sizeof(double) * na);
    memset(bars->duration, 0, sizeof(double) * na);
    at += stride * steps;
    while (steps-- > 0 && !why) {
        const double *before = (at -= stride) - stride, tau = at[0], h = at[1], to = at[2];
        go_to(w, lane, at);
        const int64_t s = w->method->stages;
        memcpy(bars->k + (s - 1) * size, bars->k, sizeof(double) * size); /* the next step's K_1 is this one's last */
        memset(bars->k, 0, sizeof(double) * (s - 1) * size);
        memset(bars->y0, 0, sizeof(double) * size);
        next = read_outputs(w, bars, sums, lane, next, first, tau, to - tau,
                            steps ? before[0] + (before[2] - before[0]) : -1.0);
        why = look_at_stages(w, stages, lane, tau, h, to, w->z1, unit);
        for (int64_t i = s - 1; i > 0 && !why; i--)
            why = pull_stage(w, bars, stages, lane, i, stage_time(w, i, tau, h, to), h, unit);
        if (!why && at[3] != 0.0) why = pull_rates(w, bars, lane, tau, w->y, unit);
        if (why) task->where[lane] = task->start[lane] + task->duration[lane] * tau;
        memcpy(bars->y, bars->y0, sizeof(double) * size);
    }
    w->y = y; w->k = k;
    if (why) return why;
    const int64_t from = bars->from, bytes = sizeof(double) * bars->count;
    const double *seed = sums->seeds + lane * task->m * n_x * n_a + from;
    for (int64_t i = 0; i < n_x; i++) {
        double *x0 = sums->x0 + (lane * n_x + i) * n_a + from;
        memcpy(x0, bars->y + i * na, bytes);
        if (first) add(x0, 1.0, seed + i * n_a, bars->count);
    }
    for (int64_t i = 0; i < model->n_p; i++)
        memcpy(sums->p + (lane * model->n_p + i) * n_a + from, bars->p + i * na, bytes);
    memcpy(sums->start + lane * n_a + from, bars->start, bytes);
    memcpy(sums->duration + lane * n_a + from, bars->duration, bytes);
    return FINE;
}

/* Differentiate sums over lanes from `first` on until `budget` steps were gone back; return with which to go on.
   The task has no directions; steps that it has are followed. */
int64_t castfit_pull(const Model *model, const Tableau *method, const Task *task, const Sums *sums, int64_t first,
                     int64_t budget)
{
    Work w;
    const int64_t n_a = sums->n_a, parts = (n_a + AT_ONCE - 1) / AT_ONCE, few = parts > 0 ? (n_a + parts - 1) / parts : 0;
    const int64_t na = few == 1 ? 1 : (few + WIDE - 1) / WIDE * WIDE, n = model->n_x + model->n_z;
    int64_t lane = first, gone = 0, *kept = room(2 * task->lanes + 1, sizeof(int64_t));
    Task again = *task; /* keeps steps in a pool of its own, one lane after the other */
    again.pool = room(again.room = 1, sizeof(double));
    again.kept = kept;
    again.follow = 0;
    const int prepared = prepare(&w, model, method, &again);
    double *numbers = room((model->n_x * (w.stages + 2) + 6 * n + model->n_p + 2) * na, sizeof(double));
    Bars bars = {.na = na, .y = numbers};
    const int64_t each = model->jacobian_nnz + model->slope_nnz + n + model->sparse + n;
    Stages stages = {.jacobian = room(TOGETHER * each, sizeof(double))};
    char *side_by_side = room(model->sparse + 2 * n + 1, sizeof(many));
    const int enough = prepared && kept && again.pool && numbers && stages.jacobian && side_by_side;
    w.growing = &again;
    w.pool_limit = sums->most;
    if (enough) {
        bars.y0 = bars.y + model->n_x * na; bars.k = bars.y0 + model->n_x * na; bars.v = bars.k + model->n_x * na * w.stages;
        bars.eta = bars.v + n * na; bars.r = bars.eta + n * na; bars.left = bars.r + n * na;
        bars.p = bars.left + 3 * n * na;
        bars.start = bars.p + model->n_p * na; bars.duration = bars.start + na;
        stages.by_p = stages.jacobian + TOGETHER * model->jacobian_nnz;
        stages.by_t = stages.by_p + TOGETHER * model->slope_nnz; stages.inverse = stages.by_t + TOGETHER * n;
        stages.sparse = stages.inverse + TOGETHER * n;
        stages.lu = (many *)(side_by_side + sizeof(many) - (uintptr_t)side_by_side % sizeof(many));
        stages.inverses = stages.lu + model->sparse; stages.largest = stages.inverses + n;
    }
    for (; lane < task->lanes && gone < budget; lane++) {
        if (task->skip[lane]) continue;
        const double *steps = task->pool;
        int64_t code = enough ? FINE : NO_MEMORY, at = 0, count = 0;
        if (steps && task->kept[2 * lane + 1] > 0) {
            at = task->kept[2 * lane];
            count = task->kept[2 * lane + 1];
        } else if (enough) {
            kept[2 * lane] = kept[2 * lane + 1] = kept[2 * task->lanes] = 0;
            code = integrate(&w, lane);
            count = kept[2 * lane + 1];
            steps = again.pool;
            if (code == FINE && count < 0) code = NO_MEMORY;
        }
        for (bars.from = 0; bars.from < n_a && code == FINE; bars.from += few) {
            bars.count = few < n_a - bars.from ? few : n_a - bars.from;
            code = pull(&w, &bars, &stages, sums, lane, steps + at, count);
        }
        task->code[lane] = code;
        gone += 2 * (count > 0 ? count : 1);
    }
    free(again.pool); free(kept); free(numbers); free(stages.jacobian); free(side_by_side);
    dismiss(&w);
    return lane;
}
