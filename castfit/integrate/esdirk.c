/* ESDIRK methods for many initial value problems of one model, with forward sensitivities of the steps taken.

   A lane is   x' = D f(t, x, z, p, u),  0 = g(t, x, z, p, u),   t = S + D tau,  tau in [0, 1].

   One step from tau to tau + h, with H = h D (Kennedy, Carpenter 2016, NASA/TM-2016-219173):

       K_1 = f(y_0),    Y_i = y_0 + H sum_{j<i} a_ij K_j + H gamma K_i,    K_i = f(t_i, Y_i),   i = 2 ... s
       y_1 = Y_s                                                     (stiffly accurate: the last stage is the step)
       error  = H sum (b_i - bhat_i) K_i

   Algebraic states have no K: every stage solves g = 0 for them, so the order is that of the ODE they leave.
   Stages are solved by Newton's method with one matrix per step, that at its beginning,

       M = [ I - H gamma f_x   -H gamma f_z ;   -g_x   -g_z ],

   factorized once: in an order chosen beforehand for the model's pattern (esdirk.py), or, where that would lose
   digits or the pattern is dense, with rows scaled so that pivots do not depend on units.

   Sensitivities are those of the numbers computed: stages are differentiated as implicit functions, so that with M_i
   the same matrix at the stage itself, for all directions d at once (Hemker 1972),

       M_i dY_i = dy_0 + H sum_{j<i} a_ij dK_j + H gamma (f_p dp + f_t dt_i) + dH (sum_{j<=i} a_ij K_j)

   with the steps h held; H moves where the lane's duration D does, t_i where its start or duration do.

   Directions follow the steps that the states need, at once or later: an integration without them may keep what it
   computed, and that with them need not solve the stages again.  The numbers are the same.  Where the errors of directions
   on these steps are too large, the lane is integrated again for them, with a say in the choice of steps; states remain.

   A lane without algebraic states may begin, and go on, by an explicit pair instead: gamma = 0, the last stage again the
   step, no matrix and nothing to be solved.  ESDIRK takes over where h |lambda| stays at the limit of stability (Hairer,
   Wanner: Solving ODEs II, IV.2), or where a few of its steps, taken to find out, become much longer; it is left again
   where a bound of h |lambda| says that explicit steps could be as long, and for good once it took steps that they never
   could.  Lengths and counts of steps decide, so that a lane is integrated in the same way whatever was before it.

   Between the ends of a step   y(th) = Hermite's cubic + th^2 (1 - th)^2 H sum d_i K_i,   of order 4 (tableau.py).

   Nothing here is shared between calls: different threads may integrate different lanes with workspaces of their own.
*/
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WIDE 4 /* directions are padded to a multiple, so that loops over them need no remainder */
#define MOST_STAGES 8
#define SHORTEST 1e-14 /* step, relative to where it begins: a pole ends the integration at once */
#define FEW_OUTPUTS 500
#define LEAST 1e-40    /* step at the very beginning */
#define LARGEST_MULTIPLIER 1e3 /* of scaled rows: beyond it another pivot than the one foreseen is needed ... */
#define LARGEST_OF_MANY 1e6    /* ... in large matrices, where pivoting costs a hundred times more; and there only ... */
#define ACCURATE 1e-10         /* ... where a system is not solved so accurately without, ... */
#define ROUGH 1e-6             /* ... or so by who corrects what is solved */
#define MANY_ROWS 50
#define KEPT_HEAD 6 /* numbers before the stages of a step that is kept */
#define COUNTS 5
#define STRICT 2.0  /* times the errors of explicit steps: then what comes of a tolerance is what ESDIRK makes of it */
/* When steps are explicit.  Lengths are relative to the fastest rate. */
#define SHORT 3.0    /* a lane that explicit steps take whatever they meet */
#define CALM 3.0     /* a step of ESDIRK that explicit ones could be as long as */
#define ENDLESS 3e4  /* all the rest of a lane: explicit steps would be ten thousand, so what is fast there will not last */
#define BEGIN 0.6    /* part of such a step that the first explicit one is */
#define STIFF 10.0   /* a step of ESDIRK that explicit ones could never be as long as: they are not come back to */
#define EDGE 3.2     /* an explicit step that is nearly unstable; */
#define EDGES 3      /* so many in succession are stiff */
#define SUSPECT 0.25 /* an explicit step that what is stiff may hold back, */
#define MANY 100     /* if so many of them are still to come: */
#define PATIENCE 10  /* after so many that is tried out, after twice as many where it was in vain: */
#define TRIED 3      /* by so many steps of ESDIRK, */
#define WORTH 2.0    /* which must have become so many times as long */
#define BOUNDS 4     /* of eigenvalues, of which the least is taken */
#define LARGE 256    /* states times directions, of which the derivatives cost so much that explicit steps gain nothing */
#define IN_ALL 25    /* times the steps between two outputs, those of a lane of which directions are not watched; */
#define ON_AVERAGE 0.1 /* of them, where that is more: between two of many outputs */
#define REMEMBERED 1e-6 /* part of the largest value of a state so far that counts as its magnitude, if more than `unit` */

typedef double wide __attribute__((vector_size(8 * WIDE), aligned(8), may_alias));

/* A function of the model: compiled C of CasADi, or else CasADi's own evaluation of a buffer. */
typedef struct {
    int (*compiled)(const double **, double **, long long *, double *, int);
    const double **arguments;
    double **results;
    long long *integers;
    double *work;
    void (*evaluate)(void *);
    void *buffer;
} Function;

/* The model: how its functions are called, and where they read and write. */
typedef struct {
    int64_t n_x, n_z, n_p, n_u;
    int64_t jacobian_nnz, slope_nnz;            /* of (f, g) by (x, z); by p */
    const int64_t *jacobian_row, *jacobian_col; /* (jacobian_nnz,) */
    const int64_t *slope_row, *slope_col;       /* (slope_nnz,) */
    Function rates, jacobian, slopes;
    double *t, *y, *p, *u, *du;      /* read by all: time, states, parameters, inputs and (slopes only) theirs */
    double *f, *j;                   /* written by rates, (n,), and jacobian, (jacobian_nnz,) */
    double *slope_j, *by_p, *by_t;   /* written by slopes: again the Jacobian, by p (slope_nnz,), by time in all (n,) */
    int64_t timed;                   /* whether f or g depend on time otherwise than through inputs */
    int64_t sparse, tail;            /* entries of L and U in the order chosen beforehand, 0 for none; first dense row */
    const int32_t *pivot_row, *pivot_col, *begin, *pivot, *at, *earlier, *entry, *one, *targets; /* esdirk.py */
} Model;

typedef struct {
    int64_t stages, order;           /* order of the embedded method plus one */
    double gamma;
    const double *a, *c, *error, *dense, *predict; /* (s, s), (s,), (s,), (s,), (s, s) */
} Tableau;

/* What is integrated, and where results go; m outputs, n_d directions. */
typedef struct {
    int64_t lanes, m, n_d, max_steps;
    double relative, absolute, newton, watch; /* watch: share of the directions' errors that counts, 0 for none */
    const double *grid;                       /* (m,) */
    const double *start, *duration, *x0, *z0, *p, *u, *unit;
    const int8_t *stops;                      /* (L, m): what the inputs do at a grid time; 1 kink, 2 jump */
    const double *dx0, *dp, *d_start, *d_duration; /* (L, n_x, n_d), (L, n_p, n_d), (L, n_d), (L, n_d) */
    const int8_t *skip;                       /* (L,) lanes that are left out */
    const Tableau *pair;                      /* explicit, to be used where it is stable; or null */
    const double *replay;                     /* steps to be taken instead of chosen ones (of the first lane), or null */
    double *record;                           /* where steps are noted (of the first lane), the pair's as -h; or null */
    int64_t recorded;                         /* room there */
    double *pool;                             /* of steps, to keep or to follow them, or null */
    int64_t room, follow;                     /* numbers in the pool; whether its steps are followed */
    int64_t *kept;                            /* (2 L + 1,): begin and number of a lane's steps, -1 for none; then all */
    double *x, *z, *dx;                       /* (L, m, n_x), (L, m, n_z), (L, m, n_x, n_d) */
    int64_t *code, *which, *counts;           /* (L,), (L,), (L, 5): steps, rejected, evaluations, those again, the pair's */
    double *where;                            /* (L,) */
} Task;

enum { FINE, STEP_ERROR, STEP_NEWTON, MANY_STEPS, NOT_FINITE, SINGULAR, NO_MEMORY,
       NO_SLOPES, STAGE_SINGULAR };

typedef struct {
    const Model *model;
    int64_t n, *order, *l_n, *u_n, *l_at, *u_at; /* rows' order; columns that are not zero, (n, n) */
    double *lu, *inverse, *scale, *sparse;       /* sparse: values in the order chosen beforehand */
    int foreseen, rough;                         /* whether that was followed; and left few digits */
} Factors;

/* What speaks for explicit steps, and what against. */
typedef struct {
    int64_t edges, calm, since, patience; /* since: steps since the last change, or the last look at the matter */
    double left, entered, limit;          /* steps at which explicit ones were left, or begun with; CALM, or less */
} Choice;

typedef struct {
    const Model *model;
    const Tableau *implicit, *method; /* method: of the present step */
    Choice choice;
    const Task *task;
    int64_t n, nd, stages; /* nd: directions, padded; stages: of that method which has more of them */
    int64_t interval;   /* of the inputs */
    int64_t *dp_begin, *dp_at; double *dp_value; /* derivatives of p that are not zero, row by row */
    double *y, *y1, *z1, *k, *r, *weight, *e, *change, *most, *jacobian; /* most: sizes of states so far */
    double *s, *sk, *sr, *se, *dt;
    double *numbers, *directions; /* where they are */
    int heeded, lost;             /* whether directions have a say in steps, and only they are asked for; need one ... */
    double most_astray;           /* ... as the errors that count are more than so many times those allowed; 0 for never */
    Task *growing;                /* the task, where its pool may be made larger ... */
    int64_t pool_limit;           /* ... up to this */
    Factors shared, own;
} Work;

static void call(const Function *function)
{
    if (function->compiled)
        function->compiled(function->arguments, function->results, function->integers, function->work, 0);
    else
        function->evaluate(function->buffer);
}

/* ------------------------------------------------------------------ linear algebra */

/* Factorize the matrix in `lu` with scaled partial pivoting; return whether it is regular. */
static int factorize(Factors *of, const double *unit)
{
    const int64_t n = of->n;
    double *restrict a = of->lu;
    for (int64_t i = 0; i < n; i++) {
        double largest = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const double size = fabs(a[i * n + j]) * unit[j];
            if (!(size <= largest)) largest = size;
        }
        if (!(largest > 0.0) || !isfinite(largest)) return 0;
        of->scale[i] = 1.0 / largest;
        of->order[i] = i;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t best = k;
        double size = -1.0;
        for (int64_t i = k; i < n; i++) {
            const double here = fabs(a[i * n + k]) * of->scale[i];
            if (here > size) { size = here; best = i; }
        }
        if (!(size > 0.0)) return 0;
        if (best != k) {
            for (int64_t j = 0; j < n; j++) {
                const double other = a[k * n + j];
                a[k * n + j] = a[best * n + j];
                a[best * n + j] = other;
            }
            const int64_t row = of->order[k]; of->order[k] = of->order[best]; of->order[best] = row;
            of->scale[best] = of->scale[k];
        }
        const double inverse = of->inverse[k] = 1.0 / a[k * n + k];
        for (int64_t i = k + 1; i < n; i++) {
            if (a[i * n + k] == 0.0) continue;
            const double factor = a[i * n + k] *= inverse;
            for (int64_t j = k + 1; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t lower = 0, upper = 0;
        for (int64_t j = 0; j < i; j++) if (a[i * n + j] != 0.0) of->l_at[i * n + lower++] = j;
        for (int64_t j = i + 1; j < n; j++) if (a[i * n + j] != 0.0) of->u_at[i * n + upper++] = j;
        of->l_n[i] = lower; of->u_n[i] = upper;
    }
    return 1;
}

/* Solve for one right-hand side b (n,) into x (n,), in the order chosen beforehand. */
static void solve_foreseen(const Factors *of, const double *restrict b, double *restrict x)
{
    const Model *model = of->model;
    const int64_t n = of->n;
    const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
    for (int64_t k = 0; k < n; k++) {
        double sum = b[model->pivot_row[k]];
        for (int32_t q = begin[k]; q < pivot[k]; q++) sum -= of->sparse[q] * x[at[q]];
        x[at[pivot[k]]] = sum;
    }
    for (int64_t k = n - 1; k >= 0; k--) {
        double sum = x[at[pivot[k]]];
        for (int32_t q = pivot[k] + 1; q < begin[k + 1]; q++) sum -= of->sparse[q] * x[at[q]];
        x[at[pivot[k]]] = sum * of->inverse[k];
    }
}

/* Return by how much entries of M differ, relatively, from those of a matrix for which M x = M v, v = (+-unit), is solved
   as foreseen (Oettli, Prager 1964; Arioli, Demmel, Duff 1989): that does not depend on units. */
static double backward_error(const Factors *of, const double *restrict j, double g, const double *restrict unit)
{
    const Model *model = of->model;
    const int64_t n = of->n, n_x = model->n_x;
    double *b = of->lu, *x = b + n, *size = x + n; /* M v, then M v - M x;  v, then x;  |M v| + |M| |x| */
    for (int64_t i = 0; i < n; i++) {
        x[i] = (i * 2654435761u >> 7) & 1 ? unit[i] : -unit[i]; /* of either sign without a pattern */
        b[i] = i < n_x ? x[i] : 0.0;
    }
    for (int64_t q = 0; q < model->jacobian_nnz; q++) {
        const int64_t row = model->jacobian_row[q];
        b[row] -= (row < n_x ? g : 1.0) * j[q] * x[model->jacobian_col[q]];
    }
    solve_foreseen(of, b, x);
    for (int64_t i = 0; i < n; i++) {
        size[i] = fabs(b[i]) + (i < n_x ? fabs(x[i]) : 0.0);
        if (i < n_x) b[i] -= x[i];
    }
    for (int64_t q = 0; q < model->jacobian_nnz; q++) {
        const int64_t row = model->jacobian_row[q];
        const double part = (row < n_x ? g : 1.0) * j[q] * x[model->jacobian_col[q]];
        b[row] += part;
        size[row] += fabs(part);
    }
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double part = size[i] > 0.0 ? fabs(b[i]) / size[i] : 0.0;
        if (!(part <= worst)) worst = part;
    }
    return worst;
}

/* From where on everything is dense, rows are eliminated with so many at a time: each then is read so much less often. */
#define PANEL 8

/* Subtract from `row`, at rank u, the products of `factors` with the rows `first` to `last`. */
#define PANEL_PRODUCTS(vector)                                                                                        \
    (*(vector *)(row + u) = *(vector *)(row + u) - factors[0] * *(const vector *)(by[0] + u) -                        \
                            factors[1] * *(const vector *)(by[1] + u) - factors[2] * *(const vector *)(by[2] + u) -   \
                            factors[3] * *(const vector *)(by[3] + u) - factors[4] * *(const vector *)(by[4] + u) -   \
                            factors[5] * *(const vector *)(by[5] + u) - factors[6] * *(const vector *)(by[6] + u) -   \
                            factors[7] * *(const vector *)(by[7] + u))

/* Factorize M for the Jacobian j in the order chosen beforehand; return whether that leaves digits as wanted. */
static int factorize_foreseen(Factors *of, const double *restrict j, double g, const double *restrict unit, double wanted)
{
    const Model *model = of->model;
    const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
    const int32_t *restrict entry = model->entry, *restrict target = model->targets;
    double *restrict lu = of->sparse, *restrict largest = of->scale, *restrict inverse = of->inverse;
    const int64_t n = of->n, n_x = model->n_x, tail = model->tail;
    const double limit = n > MANY_ROWS ? LARGEST_OF_MANY : LARGEST_MULTIPLIER;
    int doubtful = 0;
    memset(lu, 0, sizeof(double) * model->sparse);
    for (int64_t i = 0; i < n_x; i++) lu[model->one[i]] = 1.0;
    if (n == n_x)
        for (int64_t q = 0; q < model->jacobian_nnz; q++) lu[entry[q]] -= g * j[q];
    else
        for (int64_t q = 0; q < model->jacobian_nnz; q++) lu[entry[q]] -= (model->jacobian_row[q] < n_x ? g : 1.0) * j[q];
    for (int64_t k = 0; k < n; k++) {
        double most = 0.0;
        for (int32_t q = begin[k]; q < begin[k + 1]; q++) {
            const double size = fabs(lu[q]) * unit[at[q]];
            if (!(size <= most)) most = size;
        }
        largest[k] = most;
        const int32_t listed = k < tail ? pivot[k] : begin[k + 1] - (int32_t)(n - tail);
        for (int32_t q = begin[k]; q < listed; q++) {
            const int32_t i = model->earlier[q];
            const double factor = lu[q] *= inverse[i];
            if (!(fabs(factor) * largest[i] <= limit * most)) {
                if (n <= MANY_ROWS || !isfinite(factor)) return 0;
                doubtful = 1;
            }
            for (int32_t u = pivot[i] + 1; u < begin[i + 1]; u++) lu[*target++] -= factor * lu[u];
        }
        if (k >= tail) continue;
        const double here = lu[pivot[k]];
        if (!(fabs(here) > 0.0) || !isfinite(here)) return 0;
        inverse[k] = 1.0 / here;
    }
    for (int64_t first = tail; first < n; first += PANEL) {
        const int64_t last = first + PANEL < n ? first + PANEL : n;
        for (int64_t k = first; k < n; k++) {
            double *row = lu + begin[k + 1] - n, factors[PANEL];
            const int64_t stop = k < last ? k : last;
            for (int64_t i = first; i < stop; i++) {
                const double *by = lu + begin[i + 1] - n;
                const double factor = factors[i - first] = row[i] *= inverse[i];
                if (!(fabs(factor) * largest[i] <= limit * largest[k])) {
                    if (n <= MANY_ROWS || !isfinite(factor)) return 0;
                    doubtful = 1;
                }
                for (int64_t u = i + 1; u < (k < last ? n : last); u++) row[u] -= factor * by[u];
            }
            if (k < last) {
                if (!(fabs(row[k]) > 0.0) || !isfinite(row[k])) return 0;
                inverse[k] = 1.0 / row[k];
            } else {
                const double *by[PANEL];
                for (int64_t i = 0; i < PANEL; i++) by[i] = lu + begin[first + i + 1] - n;
                int64_t u = last;
                for (; u + WIDE <= n; u += WIDE) PANEL_PRODUCTS(wide);
                for (; u < n; u++) PANEL_PRODUCTS(double);
            }
        }
    }
    if (!doubtful) return 1;
    const double error = backward_error(of, j, g, unit);
    of->rough = !(error <= ACCURATE);
    return error <= wanted;
}

/* Solve for one right-hand side b (n,) into x (n,). */
static void solve(const Factors *of, const double *restrict b, double *restrict x)
{
    const int64_t n = of->n;
    if (of->foreseen) {
        solve_foreseen(of, b, x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double sum = b[of->order[i]];
        for (int64_t q = 0; q < of->l_n[i]; q++) sum -= of->lu[i * n + of->l_at[i * n + q]] * x[of->l_at[i * n + q]];
        x[i] = sum;
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        double sum = x[i];
        for (int64_t q = 0; q < of->u_n[i]; q++) sum -= of->lu[i * n + of->u_at[i * n + q]] * x[of->u_at[i * n + q]];
        x[i] = sum * of->inverse[i];
    }
}

/* Solve for nd right-hand sides b (n, nd) into x (n, nd): every row operation runs along the directions. */
static void solve_all(const Factors *of, const double *restrict b, double *restrict x, int64_t nd)
{
    const int64_t n = of->n;
    if (of->foreseen) {
        const Model *model = of->model;
        const int32_t *restrict begin = model->begin, *restrict pivot = model->pivot, *restrict at = model->at;
        for (int64_t k = 0; k < n; k++) {
            const double *from = b + model->pivot_row[k] * nd;
            double *to = x + at[pivot[k]] * nd;
            for (int64_t d = 0; d < nd; d += WIDE) {
                wide sum = *(const wide *)(from + d);
                for (int32_t q = begin[k]; q < pivot[k]; q++) sum -= of->sparse[q] * *(const wide *)(x + at[q] * nd + d);
                *(wide *)(to + d) = sum;
            }
        }
        for (int64_t k = n - 1; k >= 0; k--) {
            double *to = x + at[pivot[k]] * nd;
            const int32_t first = pivot[k] + 1, last = begin[k + 1];
            for (int64_t d = 0; d < nd; d += WIDE) {
                wide sum = *(const wide *)(to + d);
                for (int32_t q = first; q < last; q++) sum -= of->sparse[q] * *(const wide *)(x + at[q] * nd + d);
                *(wide *)(to + d) = sum * of->inverse[k];
            }
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t *at = of->l_at + i * n;
        const double *row = of->lu + i * n, *from = b + of->order[i] * nd;
        for (int64_t d = 0; d < nd; d += WIDE) {
            wide sum = *(const wide *)(from + d);
            for (int64_t q = 0; q < of->l_n[i]; q++) sum -= row[at[q]] * *(const wide *)(x + at[q] * nd + d);
            *(wide *)(x + i * nd + d) = sum;
        }
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t *at = of->u_at + i * n;
        const double *row = of->lu + i * n;
        for (int64_t d = 0; d < nd; d += WIDE) {
            wide sum = *(const wide *)(x + i * nd + d);
            for (int64_t q = 0; q < of->u_n[i]; q++) sum -= row[at[q]] * *(const wide *)(x + at[q] * nd + d);
            *(wide *)(x + i * nd + d) = sum * of->inverse[i];
        }
    }
}

/* Factorize M at a point where the model's Jacobian is j, for H gamma = g; `wanted`: ACCURATE or ROUGH. */
static int factorize_step(Factors *of, const Model *model, const double *j, double g, const double *unit, double wanted)
{
    const int64_t n = of->n;
    of->rough = 0;
    of->foreseen = model->sparse > 0 && factorize_foreseen(of, j, g, unit, wanted);
    if (of->foreseen) return 1;
    memset(of->lu, 0, sizeof(double) * n * n);
    for (int64_t i = 0; i < model->n_x; i++) of->lu[i * n + i] = 1.0;
    for (int64_t q = 0; q < model->jacobian_nnz; q++) {
        const int64_t row = model->jacobian_row[q];
        of->lu[row * n + model->jacobian_col[q]] -= (row < model->n_x ? g : 1.0) * j[q];
    }
    of->rough = 0;
    return factorize(of, unit);
}

/* ------------------------------------------------------------------ the model at a point */

/* Let the model's functions read tau and the states y; inputs are those of the current interval. */
static void place(Work *w, int64_t lane, double tau, const double *y)
{
    const Model *model = w->model;
    const Task *task = w->task;
    *model->t = task->start[lane] + task->duration[lane] * tau;
    memcpy(model->y, y, sizeof(double) * w->n);
    if (!model->n_u) return;
    const double edge = w->interval ? task->grid[w->interval - 1] : 0.0, s = task->duration[lane] * (tau - edge);
    const double *c = task->u + (lane * task->m + w->interval) * model->n_u * 4;
    for (int64_t i = 0; i < model->n_u; i++, c += 4) {
        model->u[i] = c[0] + s * (c[1] + s * (c[2] + s * c[3]));
        model->du[i] = c[1] + s * (2 * c[2] + s * 3 * c[3]);
    }
}

static double norm(const double *e, const double *weight, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) { const double v = e[i] / weight[i]; sum += v * v; }
    return sqrt(sum / n);
}

static double largest(const double *e, const double *weight, int64_t n)
{
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(e[i] / weight[i]);
        if (!(size <= worst)) worst = size;
    }
    return worst;
}

static int64_t not_finite(const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) if (!isfinite(v[i])) return i;
    return -1;
}

static void weigh(Work *w, const double *unit, const double *y, const double *other)
{
    for (int64_t i = 0; i < w->n; i++) {
        double size = fabs(y[i]);
        if (size > w->most[i]) w->most[i] = size;
        if (other && fabs(other[i]) > size) size = fabs(other[i]);
        w->weight[i] = w->task->absolute * fmax(unit[i], REMEMBERED * w->most[i]) + w->task->relative * size;
    }
}

/* ------------------------------------------------------------------ stages */

/* Solve  Y_x = r + g K,  K = f(Y),  0 = g(Y)  by Newton's method from K and Y; return 0, STEP_NEWTON or NOT_FINITE.
   The residual f(Y) - K keeps its digits however short the step; r + g f(Y) - Y would not, and K with it. */
static int newton(Work *w, int64_t lane, double tau, double g, double *y, double *k, double *rate, int64_t *which)
{
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x;
    const int most = w->task->newton < 1e-9 ? 30 : 8;
    double before = 0.0;
    *rate = pow(*rate, 0.8); /* what is known of it grows old (Hairer, Wanner: Solving ODEs II, IV.8) */
    for (int it = 0; it < most; it++) {
        place(w, lane, tau, y);
        call(&model->rates);
        w->task->counts[COUNTS * lane + 2]++;
        for (int64_t i = 0; i < n_x; i++) w->e[i] = g * (model->f[i] - k[i]);
        for (int64_t i = n_x; i < n; i++) w->e[i] = model->f[i];
        const int64_t bad = not_finite(w->e, n);
        if (bad >= 0) { *which = bad; return NOT_FINITE; }
        solve(&w->shared, w->e, w->change);
        if (g != 0.0)
            for (int64_t i = 0; i < n_x; i++) y[i] = w->r[i] + g * (k[i] += w->change[i] / g);
        for (int64_t i = n_x; i < n; i++) y[i] += w->change[i];
        const double size = norm(w->change, w->weight, n);
        if (!isfinite(size)) return STEP_NEWTON;
        if (it > 0) {
            const double ratio = size / before;
            if (ratio >= 0.9) return size <= fmax(w->task->newton, 1e-14 / w->task->relative) ? FINE : STEP_NEWTON;
            *rate = ratio < 1e-4 ? 1e-4 : ratio;
            if (w->task->newton >= 1e-9 && it + 1 < most
                && size * pow(ratio, most - 1 - it) / (1 - ratio) > w->task->newton) return STEP_NEWTON;
        }
        /* what is left after this correction is at most rate / (1 - rate) of it */
        if (size == 0.0 || *rate / (1 - *rate) * size <= w->task->newton) return FINE;
        before = size;
    }
    return w->task->newton < 1e-9 ? FINE : STEP_NEWTON;
}

/* Add  g (f_p dp + f_t dt)  to `se`, and as much for g without that factor. */
static void force(Work *w, int64_t lane, double tau, double g)
{
    const Model *model = w->model;
    const Task *task = w->task;
    const int64_t n = w->n, n_x = model->n_x, nd = w->nd;
    double *restrict se = w->se;
    for (int64_t q = 0; q < model->slope_nnz; q++) {
        const int64_t row = model->slope_row[q], col = model->slope_col[q];
        const double value = (row < n_x ? g : 1.0) * model->by_p[q];
        for (int64_t at = w->dp_begin[col]; at < w->dp_begin[col + 1]; at++)
            se[row * nd + w->dp_at[at]] += value * w->dp_value[at];
    }
    if (task->d_start)
        for (int64_t d = 0; d < task->n_d; d++) {
            const double dt = task->d_start[lane * task->n_d + d] + tau * task->d_duration[lane * task->n_d + d];
            if (dt != 0.0)
                for (int64_t row = 0; row < n; row++)
                    se[row * nd + d] += (row < n_x ? g : 1.0) * model->by_t[row] * dt;
        }
}

/* Put  f_x dY + f_z dz,  and what was added to `se`, into sk_i; dY and dz lie behind the stages. */
static void multiply(Work *w, int64_t i)
{
    const Model *model = w->model;
    const int64_t n_x = model->n_x, nd = w->nd, size = n_x * nd;
    const double *restrict dy = w->sk + w->method->stages * size;
    double *restrict se = w->se;
    for (int64_t q = 0; q < model->jacobian_nnz; q++) {
        const int64_t row = model->jacobian_row[q], col = model->jacobian_col[q];
        if (row < n_x)
            for (int64_t d = 0; d < nd; d += WIDE)
                *(wide *)(se + row * nd + d) += model->slope_j[q] * *(const wide *)(dy + col * nd + d);
    }
    memcpy(w->sk + i * size, se, sizeof(double) * size);
}

/* Differentiate stage i: sk_i from those before it, dY behind the stages.  Return 0 where M_i is singular. */
static int differentiate(Work *w, int64_t lane, int64_t i, double tau, double h, const double *y, const double *unit)
{
    const Model *model = w->model;
    const Tableau *method = w->method;
    const Task *task = w->task;
    const int64_t n = w->n, n_x = model->n_x, nd = w->nd, size = n_x * nd, s = method->stages;
    const double H = h * task->duration[lane], g = H * method->gamma;
    double *restrict sr = w->sr, *restrict se = w->se;
    const double *a = method->a + i * s;
    place(w, lane, tau, y);
    call(&model->slopes);
    if (not_finite(model->slope_j, model->jacobian_nnz) >= 0) return 0;
    if (g != 0.0 && !factorize_step(&w->own, model, model->slope_j, g, unit, ACCURATE)) return 0;
    for (int64_t q = 0; q < size; q += WIDE) {
        wide sum = {0.0};
        for (int64_t j = 0; j < i; j++) sum += a[j] * *(const wide *)(w->sk + j * size + q);
        *(wide *)(sr + q) = *(const wide *)(w->s + q) + H * sum;
    }
    if (task->d_duration)
        for (int64_t row = 0; row < n_x; row++) {
            double sum = 0.0;
            for (int64_t j = 0; j <= i; j++) sum += a[j] * w->k[j * n + row];
            for (int64_t d = 0; d < task->n_d; d++) sr[row * nd + d] += h * task->d_duration[lane * task->n_d + d] * sum;
        }
    double *dy = w->sk + s * size; /* behind the stages */
    if (g == 0.0) {
        memcpy(dy, sr, sizeof(double) * size);
        memset(se, 0, sizeof(double) * size);
        force(w, lane, tau, 1.0);
        multiply(w, i);
        return 1;
    }
    memcpy(se, sr, sizeof(double) * size);
    memset(se + size, 0, sizeof(double) * (n - n_x) * nd);
    force(w, lane, tau, g);
    solve_all(&w->own, se, dy, nd);
    double *restrict sk = w->sk + i * size;
    const double inverse = 1.0 / g;
    for (int64_t q = 0; q < size; q += WIDE)
        *(wide *)(sk + q) = (*(wide *)(dy + q) - *(wide *)(sr + q)) * inverse;
    return 1;
}

/* Differentiate K_1 where it was not a last stage before: f_x dx + f_z dz + f_p dp + f_t dt. */
static int differentiate_rates(Work *w, int64_t lane, double tau, const double *y, const double *unit)
{
    /* A stage of length g about y has dY = dy_0 + g dK up to order g^2: exact derivatives need the product instead. */
    const Model *model = w->model;
    const int64_t n = w->n, n_x = model->n_x, nd = w->nd, size = n_x * nd;
    double *dy = w->sk + w->method->stages * size, *se = w->se;
    place(w, lane, tau, y);
    call(&model->slopes);
    if (not_finite(model->slope_j, model->jacobian_nnz) >= 0) return 0;
    memset(se, 0, sizeof(double) * n * nd);
    force(w, lane, tau, 1.0);
    memcpy(dy, w->s, sizeof(double) * size);
    if (n > n_x) { /* dz from  g_x dx + g_z dz + g_p dp + g_t dt = 0: a stage of length zero */
        if (!factorize_step(&w->own, model, model->slope_j, 0.0, unit, ACCURATE)) return 0;
        memcpy(w->sr, w->s, sizeof(double) * size);
        memcpy(w->sr + size, se + size, sizeof(double) * (n - n_x) * nd);
        solve_all(&w->own, w->sr, dy, nd);
    }
    multiply(w, 0);
    return 1;
}

/* Make algebraic states consistent: a stage of length zero. */
static int consistent(Work *w, int64_t lane, double tau, double *y, const double *unit, int64_t *which)
{
    const Model *model = w->model;
    if (!model->n_z) return FINE;
    double rate = 0.5;
    place(w, lane, tau, y);
    call(&model->jacobian);
    if (!factorize_step(&w->shared, model, model->j, 0.0, unit, ROUGH)) return SINGULAR;
    return newton(w, lane, tau, 0.0, y, w->k, &rate, which);
}

/* Return a first step, from how fast states and rates change (Hairer, Norsett, Wanner: Solving ODEs I, II.4). */
static double first_step(Work *w, int64_t lane, double tau)
{
    const Model *model = w->model;
    const double D = w->task->duration[lane];
    const int64_t n_x = model->n_x;
    const double size = norm(w->y, w->weight, n_x), rate = fabs(D) * norm(w->k, w->weight, n_x);
    /* what rests while f depends on time may be about to be moved: look at once what comes */
    const double near = size < 1e-5 || rate < 1e-5 ? 1e-6 : 0.01 * size / rate;
    double h = model->timed ? fmin(near, 1e-6) : near;
    if (h > 1.0 - tau) h = 1.0 - tau;
    memcpy(w->y1, w->y, sizeof(double) * w->n);
    for (int64_t i = 0; i < n_x; i++) w->y1[i] += h * D * w->k[i];
    place(w, lane, tau + h, w->y1);
    call(&model->rates);
    double bend = 0.0;
    for (int64_t i = 0; i < n_x; i++) w->e[i] = model->f[i] - w->k[i];
    if (not_finite(w->e, n_x) < 0) bend = fabs(D) * norm(w->e, w->weight, n_x) / h;
    const double most = bend > rate ? bend : rate;
    const double next = most <= 1e-15 ? fmax(1e-6, 1e-3 * h) : pow(0.01 / most, 1.0 / w->method->order);
    return fmin(100.0 * h, next);
}

/* ------------------------------------------------------------------ output */

static void write_outputs(Work *w, int64_t lane, int64_t *next, double tau, double h)
{
    const Model *model = w->model;
    const Tableau *method = w->method;
    const Task *task = w->task;
    const int64_t n = w->n, n_x = model->n_x, n_z = model->n_z, nd = w->nd, s = method->stages, size = n_x * nd;
    const double D = task->duration[lane], H = h * D, end = tau + h;
    for (; *next < task->m && task->grid[*next] <= end; ++*next) {
        const double th = end == task->grid[*next] ? 1.0 : (task->grid[*next] - tau) / h, om = 1.0 - th;
        double coefficient[MOST_STAGES];
        for (int64_t j = 0; j < s; j++) coefficient[j] = th * th * om * om * method->dense[j];
        coefficient[0] += th * om * om;
        coefficient[s - 1] -= th * th * om;
        const double of0 = om * om * (1 + 2 * th), of1 = th * th * (3 - 2 * th);
        double *x = task->x + (lane * task->m + *next) * n_x, *z = task->z + (lane * task->m + *next) * n_z;
        for (int64_t i = 0; i < n_x && !w->heeded; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < s; j++) sum += coefficient[j] * w->k[j * n + i];
            x[i] = th == 1.0 ? w->y1[i] : of0 * w->y[i] + of1 * w->y1[i] + H * sum;
        }
        for (int64_t i = 0; i < n_z && !w->heeded; i++) z[i] = om * w->y[n_x + i] + th * w->y1[n_x + i]; /* a guess */
        if (!task->dx || w->lost) continue;
        const double *s1 = w->sk + s * size; /* dY of the last stage */
        double *dx = task->dx + (lane * task->m + *next) * n_x * task->n_d;
        for (int64_t i = 0; i < n_x; i++) {
            double rates = 0.0;
            for (int64_t j = 0; j < s; j++) rates += coefficient[j] * w->k[j * n + i];
            for (int64_t d = 0; d < nd && th < 1.0; d += WIDE) {
                const int64_t q = i * nd + d;
                wide sum = {0.0};
                for (int64_t j = 0; j < s; j++) sum += coefficient[j] * *(const wide *)(w->sk + j * size + q);
                *(wide *)(w->dt + d) = of0 * *(const wide *)(w->s + q) + of1 * *(const wide *)(s1 + q) + H * sum;
            }
            if (task->d_duration && th < 1.0)
                for (int64_t d = 0; d < task->n_d; d++) w->dt[d] += h * task->d_duration[lane * task->n_d + d] * rates;
            memcpy(dx + i * task->n_d, th < 1.0 ? w->dt : s1 + i * nd, sizeof(double) * task->n_d);
        }
    }
}

/* ------------------------------------------------------------------ one lane */

static double strictness(const Work *w)
{
    return w->method->gamma == 0.0 ? STRICT : 1.0;
}

/* Return how large the directions' errors are, relative to what is allowed; `error` is that of the states.
   Where they would decide, what is stiff in them is damped as it is in the states' error. */
static double error_of_directions(Work *w, const double *unit, double H, double error)
{
    const Task *task = w->task;
    const int64_t n = w->n, n_x = w->model->n_x, nd = w->nd, s = w->method->stages, size = n_x * nd;
    const double *s1 = w->sk + s * size, *weights = w->method->error;
    double *restrict e = w->se;
    for (int64_t q = 0; q < size; q += WIDE) {
        wide sum = {0.0};
        for (int64_t j = 0; j < s; j++) sum += weights[j] * *(const wide *)(w->sk + j * size + q);
        *(wide *)(e + q) = H * sum;
    }
    for (int damped = 0;; damped = 1) {
        double worst = 0.0;
        for (int64_t i = 0; i < n_x; i++) {
            const double least = task->absolute * fmax(unit[i], REMEMBERED * w->most[i]);
            for (int64_t q = i * nd; q < i * nd + task->n_d; q++) {
                const double before = fabs(w->s[q]), after = fabs(s1[q]);
                const double v = fabs(e[q]) / (least + task->relative * (before > after ? before : after));
                worst = v > worst || v != v ? v : worst;
            }
        }
        worst *= task->watch * strictness(w);
        if (damped || worst <= error || w->method->gamma == 0.0) return worst;
        memset(e + size, 0, sizeof(double) * (n - n_x) * nd);
        solve_all(&w->own, e, w->sr, nd);
        e = w->sr;
    }
}

/* Make room for more numbers in a pool that may grow; return whether there is. */
static int grow(Work *w, int64_t numbers)
{
    Task *task = w->growing;
    if (!task || numbers > w->pool_limit) return 0;
    double *pool = realloc(task->pool, sizeof(double) * 2 * numbers);
    if (!pool) return 0;
    task->pool = pool;
    task->room = 2 * numbers;
    return 1;
}

/* Put a step that was accepted into the pool, or give the lane up where there is no room. */
static void keep(Work *w, int64_t lane, double tau, double h, double to, int fresh)
{
    const Task *task = w->task;
    const int64_t n = w->n, s = w->method->stages;
    int64_t *kept = task->kept + 2 * lane, *used = task->kept + 2 * task->lanes;
    if (kept[1] < 0) return;
    const int64_t after = *used + KEPT_HEAD + (w->stages + 1) * n;
    if (after > task->room && !grow(w, after)) { kept[1] = -1; return; }
    double *at = task->pool + *used;
    at[0] = tau; at[1] = h; at[2] = to; at[3] = fresh; at[4] = (double)w->interval; at[5] = w->method == task->pair;
    memcpy(at + KEPT_HEAD, w->y, sizeof(double) * n);
    memcpy(at + KEPT_HEAD + n, w->k, sizeof(double) * s * n);
    *used = after;
    kept[1]++;
}

/* Go to a step of the lane that was kept: its method, interval, y and K are there, its stages are worked out. */
static void go_to(Work *w, int64_t lane, const double *at)
{
    const int64_t n = w->n, n_x = w->model->n_x;
    w->method = at[5] != 0.0 ? w->task->pair : w->implicit;
    w->interval = (int64_t)at[4];
    w->y = (double *)at + KEPT_HEAD; /* read only, as K is */
    w->k = w->y + n;
    const int64_t s = w->method->stages;
    const double H = at[1] * w->task->duration[lane], g = H * w->method->gamma;
    for (int64_t i = 1; i < s; i++) {
        const double *a = w->method->a + i * s, *own = w->k + i * n;
        double *restrict y = w->z1 + i * n;
        for (int64_t q = 0; q < n; q++) {
            double sum = 0.0;
            for (int64_t j = 0; j < i; j++) sum += a[j] * w->k[j * n + q];
            y[q] = q < n_x ? w->y[q] + H * sum + g * own[q] : own[q];
        }
    }
}

/* Start the directions, and the outputs at the very beginning. */
static void begin(Work *w, int64_t lane, int64_t *next)
{
    const Model *model = w->model;
    const Task *task = w->task;
    const int64_t n = w->n, n_x = model->n_x, nd = w->nd, size = n_x * nd;
    memcpy(w->y, task->x0 + lane * n_x, sizeof(double) * n_x);
    memcpy(w->y + n_x, task->z0 + lane * model->n_z, sizeof(double) * model->n_z);
    memcpy(model->p, task->p + lane * model->n_p, sizeof(double) * model->n_p);
    memset(w->most, 0, sizeof(double) * n);
    w->interval = 0;
    if (task->grid[0] == 0.0) { /* an empty first interval: the output at the start */
        memcpy(task->x + lane * task->m * n_x, w->y, sizeof(double) * n_x);
        memcpy(task->z + lane * task->m * model->n_z, w->y + n_x, sizeof(double) * model->n_z);
        if (task->dx)
            memcpy(task->dx + lane * task->m * n_x * task->n_d, task->dx0 + lane * n_x * task->n_d,
                   sizeof(double) * n_x * task->n_d);
        w->interval = *next = 1;
    }
    if (!task->dx) return;
    int64_t at = 0;
    for (int64_t i = 0; i < model->n_p; i++) {
        w->dp_begin[i] = at;
        for (int64_t d = 0; d < task->n_d; d++) {
            const double v = task->dp[(lane * model->n_p + i) * task->n_d + d];
            if (v != 0.0) { w->dp_at[at] = d; w->dp_value[at++] = v; }
        }
    }
    w->dp_begin[model->n_p] = at;
    memset(w->s, 0, sizeof(double) * size);
    for (int64_t i = 0; i < n_x; i++)
        memcpy(w->s + i * nd, task->dx0 + (lane * n_x + i) * task->n_d, sizeof(double) * task->n_d);
}

/* Tell whether the directions' errors in a step are too large for them to have no say in its length. */
static int astray(Work *w, const double *unit, double H)
{
    return w->most_astray > 0.0 && !(error_of_directions(w, unit, H, w->most_astray) <= w->most_astray);
}

/* Differentiate the steps that were kept. */
static void follow(Work *w, int64_t lane)
{
    const Task *task = w->task;
    const int64_t n = w->n, n_x = w->model->n_x, size = n_x * w->nd, *kept = task->kept + 2 * lane;
    const double *unit = task->unit + lane * n, *at = task->pool + kept[0];
    double *const y = w->y, *const y1 = w->y1, *const k = w->k;
    int64_t next = 0;
    begin(w, lane, &next);
    for (int64_t step = 0; step < kept[1]; step++) {
        const double tau = at[0], h = at[1], to = at[2];
        go_to(w, lane, at);
        const int64_t s = w->method->stages;
        w->y1 = w->z1 + (s - 1) * n;
        for (int64_t i = 0; i < n_x; i++) w->most[i] = fmax(w->most[i], fabs(w->y[i]));
        if (at[3] != 0.0 && !w->lost) w->lost = !differentiate_rates(w, lane, tau, w->y, unit);
        for (int64_t i = 1; i < s && !w->lost; i++)
            w->lost = !differentiate(w, lane, i, i == s - 1 ? to : tau + w->method->c[i] * h, h, w->z1 + i * n, unit);
        if (!w->lost) w->lost = astray(w, unit, h * task->duration[lane]);
        write_outputs(w, lane, &next, tau, to - tau);
        memcpy(w->s, w->sk + s * size, sizeof(double) * size);
        memcpy(w->sk, w->sk + (s - 1) * size, sizeof(double) * size);
        task->counts[COUNTS * lane]++;
        task->counts[COUNTS * lane + 4] += w->method == task->pair;
        at += KEPT_HEAD + (w->stages + 1) * n;
    }
    w->y = y; w->y1 = y1; w->k = k;
}

/* Let the Jacobian be that at tau and the present states; return the row where it is not finite, else -1. */
static int64_t look(Work *w, int64_t lane, double tau)
{
    const Model *model = w->model;
    place(w, lane, tau, w->y);
    call(&model->jacobian);
    const int64_t bad = not_finite(model->j, model->jacobian_nnz);
    memcpy(w->jacobian, model->j, sizeof(double) * model->jacobian_nnz);
    return bad < 0 ? bad : model->jacobian_row[bad];
}

/* Return a bound of the Jacobian's eigenvalues:  max (|J| v)_i / v_i  for positive v (Collatz 1942), the least of a few
   on the way to the eigenvector of |J|; or a lower bound of that, if it is more than `most`. */
static double fastest(Work *w, const double *unit, double most)
{
    const Model *model = w->model;
    const int64_t n = w->n;
    double *restrict v = w->e, *restrict next = w->change, least = INFINITY;
    for (int64_t q = 0; q < model->jacobian_nnz; q++)
        if (model->jacobian_row[q] == model->jacobian_col[q] && fabs(w->jacobian[q]) > most)
            return fabs(w->jacobian[q]);
    for (int64_t i = 0; i < n; i++) v[i] = fmax(w->most[i], unit[i]);
    for (int it = 0; it < BOUNDS; it++) {
        double bound = 0.0;
        memset(next, 0, sizeof(double) * n);
        for (int64_t q = 0; q < model->jacobian_nnz; q++)
            next[model->jacobian_row[q]] += fabs(w->jacobian[q]) * v[model->jacobian_col[q]];
        for (int64_t i = 0; i < n; i++) bound = fmax(bound, next[i] / v[i]);
        least = fmin(least, bound);
        if (!(bound > 0.0) || !isfinite(bound)) break;
        for (int64_t i = 0; i < n; i++) v[i] = next[i] / bound + 0.1 * v[i];
    }
    return least;
}

/* Return the rate that shows in the last two stages, both at the end of the step (Hairer, Wanner: IV.2). */
static double seen(Work *w)
{
    const int64_t n = w->n, last = w->method->stages - 1;
    const double *y = w->z1 + last * n, *k = w->k + last * n;
    for (int64_t q = 0; q < n; q++) { w->e[q] = y[q] - y[q - n]; w->change[q] = k[q] - k[q - n]; }
    const double moved = norm(w->e, w->weight, n);
    return moved > 1e-14 / w->task->relative ? norm(w->change, w->weight, n) / moved : 0.0;
}

static void go_on_by(Work *w, const Tableau *method)
{
    w->method = method;
    w->choice.edges = w->choice.calm = w->choice.since = 0;
}

/* After an explicit step: leave off if it was as long as stability allows, or is held back by what is stiff. */
static void doubt(Work *w, int64_t lane, double tau, double taken, double factor, const double *unit, int *known)
{
    Choice *of = &w->choice;
    const Task *task = w->task;
    const double scale = fabs(taken * task->duration[lane]);
    double rate = scale * seen(w);
    of->edges = rate > EDGE ? of->edges + 1 : 0;
    of->since++;
    int stiff = of->edges >= EDGES || (of->since == TRIED && taken * WORTH < of->entered);
    if (!stiff && of->since >= of->patience && factor < 1.3 && task->grid[task->m - 1] - tau > MANY * taken) {
        of->since = 0;
        *known = *known || look(w, lane, tau) < 0;
        if (*known) stiff = (rate = scale * fastest(w, unit, INFINITY)) > SUSPECT;
    }
    if (!stiff) return;
    of->left = taken;
    of->limit = fmin(CALM, WORTH * rate);
    go_on_by(w, w->implicit);
}

/* After a step of ESDIRK, before which the Jacobian was looked at: begin with explicit ones if the next one would hardly
   be longer than they, or has not become so since they were left. */
static double hope(Work *w, int64_t lane, double tau, double taken, double next, double factor, const double *unit)
{
    Choice *of = &w->choice;
    const double D = fabs(w->task->duration[lane]), shorter = fmin(taken, next);
    if (of->limit < 0.0) return next;
    const double rate = D * fastest(w, unit, STIFF / (D * shorter));
    if (taken * rate > STIFF) of->limit = -1.0;
    const double rest = w->task->grid[w->task->m - 1] - tau;
    const int calm = factor < 3.0 && next * rate <= of->limit && rest * rate <= ENDLESS;
    of->calm = calm ? of->calm + 1 : 0;
    int vain = 0;
    if (++of->since == TRIED) {
        vain = of->limit > 0.0 && next < WORTH * of->left;
        of->patience = !vain ? PATIENCE : of->patience < MANY ? 2 * of->patience : of->patience;
    }
    if (!vain && of->calm < 2) return next;
    of->entered = vain ? 0.0 : next;
    go_on_by(w, w->task->pair);
    return vain ? next : BEGIN * next;
}

static int integrate(Work *w, int64_t lane)
{
    const Model *model = w->model;
    const Task *task = w->task;
    const int64_t n = w->n, n_x = model->n_x, nd = w->nd, size = n_x * nd;
    const double D = task->duration[lane], *unit = task->unit + lane * n;
    int64_t *counts = task->counts + COUNTS * lane, next = 0, steps = 0, replayed = 0, which = -1;
    double tau = 0.0, h = 0.0, before = 1.0, rate = 0.5;
    int fresh = 2, rejected = 0, known = 0, why = FINE; /* fresh: K_1 is to be computed; 2: a new first step too */
    int begun = 0; /* whether K_1 was computed for this step */

    const int either = task->pair && !task->replay && !(w->heeded && size > LARGE);
    w->choice = (Choice){.patience = PATIENCE, .limit = CALM};
    w->method = w->implicit;
    begin(w, lane, &next);
    while (next < task->m) {
        if (fresh) {
            if (fresh == 2 && tau > 0.0) {
                weigh(w, unit, w->y, 0);
                if ((why = consistent(w, lane, tau, w->y, unit, &which))) goto failed;
            }
            place(w, lane, tau, w->y);
            call(&model->rates);
            if ((which = not_finite(model->f, n)) >= 0) { why = NOT_FINITE; goto failed; }
            memcpy(w->k, model->f, sizeof(double) * n_x);
            memcpy(w->k + n_x, w->y + n_x, sizeof(double) * (n - n_x));
            weigh(w, unit, w->y, 0);
            if (fresh == 2) {
                const double first = first_step(w, lane, tau);
                h = h > 0.0 && h < first ? h : first;
                before = 1.0;
            }
            known = 0;
            if (task->dx && !w->lost) {
                w->lost = !differentiate_rates(w, lane, tau, w->y, unit);
                if (w->lost && w->heeded) { why = NOT_FINITE; goto failed; }
                memcpy(w->jacobian, model->slope_j, sizeof(double) * model->jacobian_nnz);
                known = !w->lost;
            }
            begun = 1;
            if (fresh == 2 && either && w->method != task->pair) {
                if (!known && (which = look(w, lane, tau)) >= 0) { why = NOT_FINITE; goto failed; }
                known = 1;
                const double most = SHORT / fabs(D * (task->grid[task->m - 1] - tau));
                if (fastest(w, unit, most) <= most) go_on_by(w, task->pair);
            }
            fresh = 0;
        }
        if (task->replay && task->pair) w->method = task->replay[replayed] < 0.0 ? task->pair : w->implicit;
        const Tableau *method = w->method;
        const int64_t s = method->stages;
        const int explicit = method->gamma == 0.0;
        /* the next time at which a step must end */
        int64_t stop = next;
        while (stop < task->m - 1 && !task->stops[lane * task->m + stop]) stop++;
        const double end = task->grid[stop], left = end - tau;
        if (task->replay) h = fabs(task->replay[replayed]);
        const double proposed = h;
        if (!task->replay) {
            if (h >= left * (1 - 1e-10)) h = left;
            else if (h > 0.5 * left) h = 0.5 * left;
            /* A single output within the step becomes its end: where states are stiff that is far more accurate than
               what lies between.  Many outputs do not: they would shorten every step.  Nor do those of explicit steps. */
            const double output = task->grid[next];
            const int single = next + 1 == task->m || task->grid[next + 1] >= tau + h;
            if (!explicit && task->m <= FEW_OUTPUTS && single && output > tau && output < tau + h) h = output - tau;
        }
        const int pole = (h < SHORTEST * tau || h < LEAST) && h < left;
        if (either && explicit && (pole || steps >= task->max_steps / 4)) { /* whatever it is, ESDIRK is to tell */
            go_on_by(w, w->implicit);
            w->choice.limit = -1.0; w->choice.left = 0.0; /* for good */
            steps = 0;
            h = fmax(h, first_step(w, lane, tau));
            continue;
        }
        if (pole) { why = why ? why : STEP_ERROR; goto failed; }
        const int endless = task->watch == 0.0 && counts[0] >= fmax(IN_ALL, ON_AVERAGE * task->m) * task->max_steps;
        if (steps++ >= task->max_steps || endless) { why = MANY_STEPS; goto failed; }
        const double at_output = task->grid[next], off = fabs(tau + h - at_output);
        const double to = h >= left * (1 - 1e-10) ? end : off <= 1e-10 * h ? at_output : tau + h, H = h * D, g = H * method->gamma;

        if (!known && !explicit) { /* the sensitivities of the step before have it; and it is the same for a shorter step */
            if ((which = look(w, lane, tau)) >= 0) { why = NOT_FINITE; goto failed; }
            known = 1;
        }
        int trouble = explicit || factorize_step(&w->shared, model, w->jacobian, g, unit, ROUGH) ? FINE : STEP_NEWTON;
        for (int64_t i = 1; i < s && !trouble; i++) {
            const double at = i == s - 1 ? to : tau + method->c[i] * h, *a = method->a + i * s, *guess = method->predict + i * s;
            double *y = w->z1 + i * n, *k = w->k + i * n;
            if (explicit) {
                for (int64_t q = 0; q < n; q++) {
                    double sum = 0.0;
                    for (int64_t j = 0; j < i; j++) sum += a[j] * w->k[j * n + q];
                    y[q] = w->y[q] + H * sum;
                }
                place(w, lane, at, y);
                call(&model->rates);
                counts[2]++;
                if ((which = not_finite(model->f, n)) >= 0) trouble = NOT_FINITE;
                memcpy(k, model->f, sizeof(double) * n);
                continue;
            }
            for (int64_t q = 0; q < n; q++) {
                double sum = 0.0, ahead = 0.0;
                for (int64_t j = 0; j < i; j++) { sum += a[j] * w->k[j * n + q]; ahead += guess[j] * w->k[j * n + q]; }
                if (q < n_x) { w->r[q] = w->y[q] + H * sum; y[q] = w->r[q] + g * (k[q] = ahead); }
                else y[q] = ahead;
            }
            trouble = newton(w, lane, at, g, y, k, &rate, &which);
            for (int64_t q = n_x; q < n; q++) k[q] = y[q];
        }
        double error = 0.0;
        if (!trouble) {
            memcpy(w->y1, w->z1 + (s - 1) * n, sizeof(double) * n);
            for (int64_t q = 0; q < n; q++) {
                double sum = 0.0;
                for (int64_t j = 0; j < s; j++) sum += method->error[j] * w->k[j * n + q];
                w->e[q] = q < n_x ? H * sum : 0.0;
            }
            if (explicit) memcpy(w->change, w->e, sizeof(double) * n);
            else solve(&w->shared, w->e, w->change); /* damps what is stiff, and tells the errors of algebraic states */
            weigh(w, unit, w->y, w->y1);
            error = largest(w->change, w->weight, n) * strictness(w);
            if (!isfinite(error)) { trouble = NOT_FINITE; which = not_finite(w->change, n); }
        }
        if (task->replay) error = 0.0;
        if (!trouble && error <= 1.0 && task->dx && !w->lost) {
            for (int64_t i = 1; i < s && !w->lost; i++) {
                const double at = i == s - 1 ? to : tau + method->c[i] * h;
                w->lost = !differentiate(w, lane, i, at, h, w->z1 + i * n, unit);
            }
            if (w->lost && (w->heeded || task->replay)) { trouble = NOT_FINITE; which = -1; w->lost = 0; }
            else if (!w->lost && !task->replay) {
                if (!w->heeded) w->lost = astray(w, unit, H);
                else if (task->watch > 0.0) error = fmax(error, error_of_directions(w, unit, H, error));
            }
        }
        if (trouble || !(error <= 1.0)) {
            if (task->replay) { why = trouble; goto failed; }
            counts[1]++;
            why = trouble ? trouble : STEP_ERROR;
            const double factor = trouble ? 0.25 : fmax(0.2, 0.9 * pow(error, -1.0 / method->order));
            h *= isfinite(factor) ? fmin(factor, 0.9) : 0.2;
            rejected = 1;
            if (trouble) rate = 0.5;
            if (either && explicit && trouble && ++w->choice.edges >= EDGES) go_on_by(w, w->implicit);
            weigh(w, unit, w->y, 0);
            continue;
        }
        counts[0]++;
        counts[4] += method == task->pair;
        if (task->pool && !task->follow && !w->heeded) keep(w, lane, tau, h, to, begun);
        begun = 0;
        const double taken = h = to - tau;
        if (task->record && !w->heeded && counts[0] <= task->recorded) task->record[counts[0] - 1] = method == task->pair ? -h : h;
        replayed++;
        const int64_t was = next;
        write_outputs(w, lane, &next, tau, h);
        if (next > was) steps = 0;
        tau = to;
        /* PI control (Hairer, Wanner: Solving ODEs II, IV.2); a step cut short by a stop says little about the next */
        const double small = error > 1e-10 ? error : 1e-10;
        double factor = 0.9 * pow(small, -0.7 / method->order) * pow(before, 0.4 / method->order);
        factor = fmin(rejected ? 1.0 : 6.0, fmax(0.2, factor));
        before = small;
        const double grown = h * factor;
        h = h < proposed * (1 - 1e-9) && factor >= 1.0 ? fmax(grown, proposed) : grown;
        rejected = 0;
        if (either && !explicit) h = hope(w, lane, tau, taken, h, factor, unit);
        memcpy(w->y, w->y1, sizeof(double) * n);
        memcpy(w->k, w->k + (s - 1) * n, sizeof(double) * n);
        known = task->dx != 0 && !w->lost;
        if (known) {
            memcpy(w->s, w->sk + s * size, sizeof(double) * size);
            memcpy(w->sk, w->sk + (s - 1) * size, sizeof(double) * size);
            memcpy(w->jacobian, model->slope_j, sizeof(double) * model->jacobian_nnz);
        }
        if (either && explicit) doubt(w, lane, tau, taken, factor, unit, &known);
        why = FINE;
        weigh(w, unit, w->y, 0);
        if (next < task->m && tau == end) {
            const int8_t kind = task->stops[lane * task->m + stop];
            if (kind) { w->interval = stop + 1; fresh = kind; }
        }
    }
    return FINE;
failed:
    task->where[lane] = task->start[lane] + D * tau;
    task->which[lane] = which;
    return why;
}

/* ------------------------------------------------------------------ all lanes */

static void *room(size_t count, size_t each) { return calloc(count ? count : 1, each); }

static int prepare_factors(Factors *of, const Model *model, int64_t n)
{
    of->model = model;
    of->n = n;
    of->sparse = room(model->sparse, sizeof(double));
    of->lu = room(n * n, sizeof(double)); of->inverse = room(n, sizeof(double)); of->scale = room(n, sizeof(double));
    of->order = room(n, sizeof(int64_t)); of->l_n = room(n, sizeof(int64_t)); of->u_n = room(n, sizeof(int64_t));
    of->l_at = room(n * n, sizeof(int64_t)); of->u_at = room(n * n, sizeof(int64_t));
    return of->sparse && of->lu && of->inverse && of->scale && of->order && of->l_n && of->u_n && of->l_at && of->u_at;
}

static void free_factors(Factors *of)
{
    free(of->sparse); free(of->lu); free(of->inverse); free(of->scale); free(of->order);
    free(of->l_n); free(of->u_n); free(of->l_at); free(of->u_at);
}

/* Make a workspace; return whether there was memory for it. */
static int prepare(Work *w, const Model *model, const Tableau *method, const Task *task)
{
    const int64_t n = model->n_x + model->n_z;
    const int64_t s = task->pair && task->pair->stages > method->stages ? task->pair->stages : method->stages;
    const int64_t nd = task->dx ? (task->n_d + WIDE - 1) / WIDE * WIDE : 0, size = model->n_x * nd;
    *w = (Work){.model = model, .implicit = method, .method = method, .task = task, .n = n, .nd = nd, .stages = s};
    w->numbers = room(n * (8 + 2 * s) + model->jacobian_nnz, sizeof(double));
    w->directions = room(size * (s + 4) + n * nd * 4 + nd, sizeof(double));
    w->dp_begin = room(model->n_p + 1, sizeof(int64_t));
    w->dp_at = room(model->n_p * (nd ? nd : 1), sizeof(int64_t));
    w->dp_value = room(model->n_p * (nd ? nd : 1), sizeof(double));
    /* without a say the part of tolerance^(2/3): 1e-6 of them for states to 1e-9, 1e-4 for 1e-6.  At equal errors of
       derivatives, 1e-4 to 1e-7, of 32 models, powers of 3/4, 5/6 and 1 take 1.07 to 1.18 times as long */
    w->most_astray = task->watch > 0.0 ? fmax(1.0, task->watch * pow(task->relative, -1.0 / 3)) : 0.0;
    const int enough = w->numbers && w->directions && w->dp_begin && w->dp_at && w->dp_value;
    if (!(prepare_factors(&w->shared, model, n) & prepare_factors(&w->own, model, n) & enough)) return 0;
    w->y = w->numbers; w->y1 = w->y + n; w->r = w->y1 + n; w->weight = w->r + n; w->e = w->weight + n;
    w->change = w->e + n; w->most = w->change + n; w->k = w->most + n; w->z1 = w->k + s * n;
    w->jacobian = w->z1 + s * n;
    w->s = w->directions; w->sk = w->s + size; w->sr = w->sk + size * s + n * nd; w->se = w->sr + n * nd;
    w->dt = w->se + n * nd;
    return 1;
}

static void dismiss(Work *w)
{
    free(w->numbers); free(w->directions); free(w->dp_begin); free(w->dp_at); free(w->dp_value);
    free_factors(&w->shared); free_factors(&w->own);
}

/* Integrate lanes from `first` on until `budget` steps were taken; return the lane with which to go on. */
int64_t castfit_integrate(const Model *model, const Tableau *method, const Task *task, int64_t first, int64_t budget)
{
    Work w;
    int64_t lane = first, taken = 0;
    if (prepare(&w, model, method, task)) {
        for (; lane < task->lanes && taken < budget; lane++) {
            if (task->skip[lane]) continue;
            if (task->pool && !task->follow) {
                task->kept[2 * lane] = task->kept[2 * task->lanes];
                task->kept[2 * lane + 1] = 0;
            }
            int64_t *counts = task->counts + COUNTS * lane;
            w.lost = w.heeded = 0;
            if (task->follow && task->kept[2 * lane + 1] > 0) follow(&w, lane);
            else task->code[lane] = integrate(&w, lane);
            if (w.lost && task->code[lane] == FINE) {
                const int64_t of_states[COUNTS] = {counts[0], counts[1], counts[2], 0, counts[4]};
                w.lost = 0; w.heeded = 1;
                task->code[lane] = integrate(&w, lane);
                counts[3] = counts[0] + counts[1] - of_states[0] - of_states[1];
                counts[0] = of_states[0]; counts[1] = of_states[1]; counts[4] = of_states[4];
            }
            taken += counts[0] + counts[1] + counts[3];
        }
    } else
        for (; lane < task->lanes; lane++) task->code[lane] = NO_MEMORY;
    dismiss(&w);
    return lane;
}
