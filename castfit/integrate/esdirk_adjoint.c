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

   Stages are those of an integration that kept its steps; where there is none, the lane is integrated once more, and
   its steps are kept as long as the lane takes: 2 s n + 6 numbers each.
*/

/* What is differentiated, and where gradients go. */
typedef struct {
    int64_t n_a;
    const double *seeds;                /* (L, m, n_x, n_a): derivatives of the sums by the outputs */
    double *x0, *p, *start, *duration;  /* (L, n_x, n_a), (L, n_p, n_a), (L, n_a), (L, n_a) */
    int64_t most;                       /* numbers that the steps of one lane may take */
} Sums;

/* Of one lane; na: sums, padded. */
typedef struct {
    int64_t na;
    double *y, *y0, *k, *v, *eta, *r, *p, *start, *duration;
} Bars;

/* Solve M^T x = b for na right-hand sides (n, na); b is lost. */
static void solve_transposed(const Factors *of, double *restrict b, double *restrict x, int64_t na)
{
    const int64_t n = of->n;
    if (of->foreseen) {
        const Model *model = of->model;
        const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
        for (int64_t k = 0; k < n; k++) {
            double *own = b + at[pivot[k]] * na;
            for (int64_t d = 0; d < na; d += WIDE) {
                const wide here = *(wide *)(own + d) *= of->inverse[k];
                for (int32_t q = pivot[k] + 1; q < begin[k + 1]; q++) *(wide *)(b + at[q] * na + d) -= of->sparse[q] * here;
            }
        }
        for (int64_t k = n - 1; k >= 0; k--) {
            const double *own = b + at[pivot[k]] * na;
            for (int64_t d = 0; d < na; d += WIDE) {
                const wide here = *(wide *)(x + model->pivot_row[k] * na + d) = *(const wide *)(own + d);
                for (int32_t q = begin[k]; q < pivot[k]; q++) *(wide *)(b + at[q] * na + d) -= of->sparse[q] * here;
            }
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t *at = of->u_at + i * n;
        const double *row = of->lu + i * n;
        for (int64_t d = 0; d < na; d += WIDE) {
            const wide here = *(wide *)(b + i * na + d) *= of->inverse[i];
            for (int64_t q = 0; q < of->u_n[i]; q++) *(wide *)(b + at[q] * na + d) -= row[at[q]] * here;
        }
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t *at = of->l_at + i * n;
        const double *row = of->lu + i * n;
        for (int64_t d = 0; d < na; d += WIDE) {
            const wide here = *(wide *)(x + of->order[i] * na + d) = *(const wide *)(b + i * na + d);
            for (int64_t q = 0; q < of->l_n[i]; q++) *(wide *)(b + at[q] * na + d) -= row[at[q]] * here;
        }
    }
}

/* Add value * b to a, (na,) each. */
static inline void add(double *restrict a, double value, const double *restrict b, int64_t na)
{
    for (int64_t d = 0; d < na; d += WIDE) *(wide *)(a + d) += value * *(const wide *)(b + d);
}

/* Add what rates and algebraic equations, weighted by eta (n, na), say about p and about time tau. */
static void add_slopes(Work *w, Bars *bars, double tau, const double *eta)
{
    const Model *model = w->model;
    const int64_t na = bars->na;
    for (int64_t q = 0; q < model->slope_nnz; q++)
        add(bars->p + model->slope_col[q] * na, model->by_p[q], eta + model->slope_row[q] * na, na);
    for (int64_t row = 0; row < w->n; row++) {
        if (model->by_t[row] == 0.0) continue;
        add(bars->start, model->by_t[row], eta + row * na, na);
        add(bars->duration, tau * model->by_t[row], eta + row * na, na);
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
        const double *seed = sums->seeds + (lane * task->m + next - 1) * n_x * sums->n_a;
        double *wide_seed = bars->v;
        memset(wide_seed, 0, sizeof(double) * size);
        for (int64_t i = 0; i < n_x; i++) memcpy(wide_seed + i * na, seed + i * sums->n_a, sizeof(double) * sums->n_a);
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

/* Carry the bars back over stage i at (tau, y); return FINE, NO_SLOPES, or STAGE_SINGULAR where M_i is. */
static int pull_stage(Work *w, Bars *bars, int64_t lane, int64_t i, double tau, double h, const double *y, const double *unit)
{
    const Model *model = w->model;
    const Tableau *method = w->method;
    const int64_t n = w->n, n_x = model->n_x, na = bars->na, size = n_x * na, s = method->stages;
    const double H = h * w->task->duration[lane], g = H * method->gamma, *a = method->a + i * s;
    double *eta = bars->eta, *r = bars->r;
    place(w, lane, tau, y);
    call(&model->slopes);
    if (not_finite(model->slope_j, model->jacobian_nnz) >= 0) return NO_SLOPES;
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
        if (!factorize_step(&w->own, model, model->slope_j, g, unit)) return STAGE_SINGULAR;
        solve_transposed(&w->own, bars->v, eta, na);
        for (int64_t q = size; q < n * na; q++) eta[q] /= g;
    }
    for (int64_t q = 0; q < model->jacobian_nnz; q++)
        add(r + model->jacobian_col[q] * na, model->slope_j[q], eta + model->jacobian_row[q] * na, na);
    add_slopes(w, bars, tau, eta);
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
        if (!factorize_step(&w->own, model, model->slope_j, 0.0, unit)) return STAGE_SINGULAR;
        solve_transposed(&w->own, v, eta, na);
        add(bars->y0, 1.0, eta, size);
    } else
        add(bars->y0, 1.0, v, size);
    memcpy(eta, bars->k, sizeof(double) * size);
    add_slopes(w, bars, tau, eta);
    memset(bars->k, 0, sizeof(double) * size);
    return FINE;
}

/* Carry the bars of one lane back over all of its steps, which begin at `at`; return as `pull_stage` does. */
static int pull(Work *w, Bars *bars, const Sums *sums, int64_t lane, const double *at, int64_t steps)
{
    const Task *task = w->task;
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x, na = bars->na, n_a = sums->n_a, size = n_x * na;
    const int64_t stride = KEPT_HEAD + 2 * w->stages * n, first = task->grid[0] == 0.0;
    const double *unit = task->unit + lane * n;
    double *const k = w->k;
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
        const double *y = at + KEPT_HEAD + w->stages * n;
        w->method = at[5] != 0.0 ? task->pair : w->implicit;
        const int64_t s = w->method->stages;
        w->interval = (int64_t)at[4];
        w->k = (double *)at + KEPT_HEAD; /* read only */
        memcpy(bars->k + (s - 1) * size, bars->k, sizeof(double) * size); /* the next step's K_1 is this one's last */
        memset(bars->k, 0, sizeof(double) * (s - 1) * size);
        memset(bars->y0, 0, sizeof(double) * size);
        next = read_outputs(w, bars, sums, lane, next, first, tau, to - tau,
                            steps ? before[0] + (before[2] - before[0]) : -1.0);
        for (int64_t i = s - 1; i > 0 && !why; i--)
            why = pull_stage(w, bars, lane, i, i == s - 1 ? to : tau + w->method->c[i] * h, h, y + i * n, unit);
        if (!why && at[3] != 0.0) why = pull_rates(w, bars, lane, tau, y, unit);
        if (why) task->where[lane] = task->start[lane] + task->duration[lane] * tau;
        memcpy(bars->y, bars->y0, sizeof(double) * size);
    }
    w->k = k;
    if (why) return why;
    for (int64_t i = 0; i < n_x; i++)
        memcpy(sums->x0 + (lane * n_x + i) * n_a, bars->y + i * na, sizeof(double) * n_a);
    if (first) {
        const double *seed = sums->seeds + lane * task->m * n_x * n_a;
        for (int64_t q = 0; q < n_x * n_a; q++) sums->x0[lane * n_x * n_a + q] += seed[q];
    }
    for (int64_t i = 0; i < model->n_p; i++)
        memcpy(sums->p + (lane * model->n_p + i) * n_a, bars->p + i * na, sizeof(double) * n_a);
    memcpy(sums->start + lane * n_a, bars->start, sizeof(double) * n_a);
    memcpy(sums->duration + lane * n_a, bars->duration, sizeof(double) * n_a);
    return FINE;
}

/* Differentiate sums over lanes from `first` on until `budget` steps were gone back; return with which to go on.
   The task has no directions; steps that it has are followed. */
int64_t castfit_pull(const Model *model, const Tableau *method, const Task *task, const Sums *sums, int64_t first,
                     int64_t budget)
{
    Work w;
    const int64_t na = (sums->n_a + WIDE - 1) / WIDE * WIDE, n = model->n_x + model->n_z;
    int64_t lane = first, gone = 0, *kept = room(2 * task->lanes + 1, sizeof(int64_t));
    Task again = *task; /* keeps steps in a pool of its own, one lane after the other */
    again.pool = room(again.room = 1, sizeof(double));
    again.kept = kept;
    again.follow = 0;
    const int prepared = prepare(&w, model, method, &again);
    double *numbers = room((model->n_x * (w.stages + 2) + 3 * n + model->n_p + 2) * na, sizeof(double));
    Bars bars = {.na = na, .y = numbers};
    const int enough = prepared && kept && again.pool && numbers;
    w.growing = &again;
    w.pool_limit = sums->most;
    if (enough) {
        bars.y0 = bars.y + model->n_x * na; bars.k = bars.y0 + model->n_x * na; bars.v = bars.k + model->n_x * na * w.stages;
        bars.eta = bars.v + n * na; bars.r = bars.eta + n * na; bars.p = bars.r + n * na;
        bars.start = bars.p + model->n_p * na; bars.duration = bars.start + na;
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
        if (code == FINE) code = pull(&w, &bars, sums, lane, steps + at, count);
        task->code[lane] = code;
        gone += 2 * (count > 0 ? count : 1);
    }
    free(again.pool); free(kept); free(numbers);
    dismiss(&w);
    return lane;
}
