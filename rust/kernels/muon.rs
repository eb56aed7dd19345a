//! Muon's update of matrices: orthogonal factor of the direction, rows of equal size, and the step.
//!
//! The specification is `ramlet/engines/torch/optim/muon.py` with `polar.py`. An orthogonal factor takes steps
//! `x <- p x` with `A = x x^T` and `p = a + b A + c A^2`. Some steps are done without x, on its shorter side only:
//! `A <- p A p`, `q <- q p`, and `x <- q x` at the end. All of these commute and are symmetric, so half of each product
//! is computed (`panels`).
//!
//! One thread updates one matrix. If there are fewer matrices than threads, or scratch memory for every thread would be
//! too much, all threads work on one matrix after the other. The bits are the same.

use super::panels::{Apply, Pack, Strided, Symmetric, TILE, Then, WIDE};
use super::squares::{squares, sum_of_squares};
use super::team::{Kernel, Rows, portion, run, run_on_threads};
use super::vector::{LANES, Line, Vector, load, store};
use std::ops::Range;
use std::sync::Mutex;

/// How many steps are done without x. Rounding errors grow with the square of what the steps enlarge small singular values
/// by. The largest error in 1,500 matrices, many of low rank: 0.02 with four steps, 0.0001 with two. Four are a quarter
/// cheaper if one side is 2.8 times the other, and not at all if they are equal.
const STEPS: usize = 2;

/// Of `Pack`: how much of the longer side is copied to panels at a time.
const DEPTH: usize = 256;

/// Scratch memory that threads may have together, in bytes, if each has its own matrix.
const SCRATCH: usize = 64 << 20;

/// Matrices with a smaller product of sides (the shorter one twice) are not worth a second thread.
const TEAM_WORTH: usize = 1 << 20;

/// A matrix of the model. All are row-major.
pub struct Matrix<'a> {
    pub weights: &'a mut [f32],
    /// Is overwritten.
    pub direction: &'a mut [f32],
    /// The running mean square of each row of the update.
    pub row_squares: &'a mut [f32],
}

#[derive(Clone, Copy)]
struct Size {
    short: usize,
    long: usize,
}

impl Size {
    fn new(rows: usize, columns: usize) -> Size {
        Size { short: rows.min(columns), long: rows.max(columns) }
    }

    fn work(self) -> usize {
        self.short * self.short * (5 * self.short + 3 * self.long)
    }

    fn panels(self) -> usize {
        self.short.div_ceil(TILE)
    }

    /// Lines of one square matrix.
    fn square(self) -> usize {
        self.panels() * self.panels() * TILE
    }

    fn packed(self, threads: usize) -> usize {
        (self.panels() * DEPTH.min(self.long)).max(WIDE * self.short * threads)
    }

    fn scratch(self, threads: usize) -> usize {
        4 * self.square() + self.packed(threads)
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Of the polynomials `a + b A + c A^2`.
    pub coefficients: Vec<[f32; 3]>,
    /// The norm of the direction is overestimated by this factor.
    pub margin: f64,
    pub row_decay: f32,
    /// Added to whatever divides.
    pub tiny: f32,
    /// The learning rate times the size of updates; each matrix has it times the root of its longer side.
    pub rate: f64,
}

/// How many matrices are in work at the same time, and the lines of scratch memory of each.
fn at_once(sizes: &[Size], threads: usize) -> (usize, usize) {
    let most = |threads| sizes.iter().map(|size| size.scratch(threads)).max().unwrap_or(0);
    let own = most(1);
    match sizes.len() >= threads && own * threads * size_of::<Line>() <= SCRATCH {
        true => (threads.max(1), own),
        false => (1, most(threads.max(1))),
    }
}

/// Bytes of scratch memory that `muon` needs for matrices of these rows and columns.
pub fn muon_scratch(sizes: &[[usize; 2]], threads: usize) -> usize {
    let sizes: Vec<Size> = sizes.iter().map(|&[rows, columns]| Size::new(rows, columns)).collect();
    let (count, lines) = at_once(&sizes, threads);
    count * lines * size_of::<Line>()
}

/// Updates matrices, on up to `threads` threads.
///
/// # Panics
/// If the slices do not have one number per row, or `scratch` has less than `muon_scratch`.
pub fn muon(mut matrices: Vec<Matrix<'_>>, settings: &Settings, scratch: &mut [Line], threads: usize) {
    let sizes: Vec<Size> = matrices.iter().map(Matrix::size).collect();
    let (count, lines) = at_once(&sizes, threads);
    assert!(scratch.len() >= count * lines);
    if count == 1 {
        for matrix in matrices {
            let worth = matrix.size().short * matrix.size().short * matrix.size().long >= TEAM_WORTH;
            matrix.update(settings, scratch, if worth { threads } else { 1 });
        }
        return;
    }
    // The last one is taken first.
    matrices.sort_by_key(|matrix| matrix.size().work());
    let (matrices, scratch) = (Mutex::new(matrices), Mutex::new(scratch.chunks_mut(lines).take(count)));
    let work = || {
        let Some(scratch) = scratch.lock().unwrap().next() else { return };
        loop {
            // A statement of its own, so that the lock is released before the work.
            let next = matrices.lock().unwrap().pop();
            match next {
                Some(matrix) => matrix.update(settings, scratch, 1),
                None => return,
            }
        }
    };
    run_on_threads(&work, count, threads);
}

impl Matrix<'_> {
    fn columns(&self) -> usize {
        self.weights.len() / self.row_squares.len()
    }

    fn size(&self) -> Size {
        Size::new(self.row_squares.len(), self.columns())
    }

    fn update(self, settings: &Settings, scratch: &mut [Line], threads: usize) {
        let (rows, columns, size) = (self.row_squares.len(), self.columns(), self.size());
        assert!(self.weights.len() == rows * columns && self.direction.len() == rows * columns);
        orthogonalize(self.direction, rows, columns, settings, scratch, threads);
        let mut means = vec![0.0; rows];
        let kernel = RowMeans { updates: self.direction, columns, means: Rows::new(&mut means, 1) };
        run(&kernel, rows, portion(columns * 4), threads);
        let rate = settings.rate * (size.long as f64).sqrt();
        equal_rows(&mut means, self.row_squares, rate, settings);
        let kernel =
            Subtract { updates: self.direction, factors: &means, weights: Rows::new(self.weights, columns) };
        run(&kernel, rows, portion(columns * 8), threads);
    }
}

/// Replaces a matrix by its orthogonal factor.
fn orthogonalize(
    matrix: &mut [f32],
    rows: usize,
    columns: usize,
    settings: &Settings,
    scratch: &mut [Line],
    threads: usize,
) {
    let size = Size::new(rows, columns);
    let norm = squares(matrix, threads).sqrt() * settings.margin + f64::from(settings.tiny);
    let mut scale = (1.0 / norm) as f32;
    // SAFETY: it has these rows and columns.
    let given = unsafe { Strided::new(matrix.as_mut_ptr(), rows, columns) };
    let x = if rows <= columns { given } else { given.transposed() };
    for coefficients in settings.coefficients.chunks(STEPS) {
        steps(x, size, scale, coefficients, scratch, threads);
        scale = 1.0;
    }
}

/// Replaces `x` times `scale` by the result of some steps, in place. The lanes of `x` are its shorter side.
fn steps(
    x: Strided,
    size: Size,
    scale: f32,
    coefficients: &[[f32; 3]],
    scratch: &mut [Line],
    threads: usize,
) {
    let (panels, depth, used) = (size.panels(), size.panels() * TILE, size.short);
    let (squares, packed) = scratch.split_at_mut(4 * size.square());
    let mut squares = squares.chunks_mut(size.square());
    let [gram, mut factor, mut other, mut product] = std::array::from_fn(|_| squares.next().unwrap());
    for start in (0..size.long).step_by(DEPTH) {
        let along = start..size.long.min(start + DEPTH);
        let depth = along.len();
        let packed = &mut packed[..panels * depth];
        let kernel = Pack { matrix: x, along, scale, panels: Rows::new(packed, depth) };
        run(&kernel, panels, 1, threads);
        let then = if start == 0 { Then::Store } else { Then::Add };
        let (a, b, used, result) = (&*packed, &*packed, depth, Rows::new(gram, TILE));
        run(&Symmetric { a, b, depth, used, result, panels, then }, panels, 1, threads);
    }
    let symmetric = |a: &[Line], b: &[Line], result: &mut [Line], then: Then<'_>| {
        let result = Rows::new(result, TILE);
        run(&Symmetric { a, b, depth, used, result, panels, then }, panels, 1, threads);
    };
    for (number, &[first, second, third]) in coefficients.iter().enumerate() {
        symmetric(gram, gram, factor, Then::Polynomial { first, second, third, a: gram });
        if number + 1 < coefficients.len() {
            symmetric(factor, gram, other, Then::Store);
            symmetric(other, factor, gram, Then::Store);
        }
        if number == 0 {
            std::mem::swap(&mut product, &mut factor);
        } else {
            symmetric(product, factor, other, Then::Store);
            std::mem::swap(&mut product, &mut other);
        }
    }
    let scratch = Mutex::new(packed.chunks_mut(WIDE * used).take(threads.max(1)).collect());
    let kernel = Apply { symmetric: product, depth, matrix: x.transposed(), scale, scratch: &scratch };
    run(&kernel, size.long.div_ceil(WIDE * LANES), 1, threads);
}

/// From the mean square of each row to its factor: rows of equal size, and the matrix as large as it was.
fn equal_rows(means: &mut [f32], row_squares: &mut [f32], rate: f64, settings: &Settings) {
    let tiny = f64::from(settings.tiny);
    let (mut before, mut after) = (0.0, 0.0);
    for (mean, known) in means.iter_mut().zip(row_squares) {
        *known += (1.0 - settings.row_decay) * (*mean - *known);
        let divisor = f64::from(*known) + tiny;
        before += f64::from(*mean);
        after += f64::from(*mean) / divisor;
        *mean = (1.0 / divisor.sqrt()) as f32;
    }
    let size = (rate * ((before + tiny) / (after + tiny)).sqrt()) as f32;
    for factor in means {
        *factor *= size;
    }
}

struct RowMeans<'a> {
    updates: &'a [f32],
    columns: usize,
    means: Rows<'a, f32>,
}

impl Kernel for RowMeans<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            let update = &self.updates[row * self.columns..][..self.columns];
            // SAFETY: each row is in one range only.
            unsafe {
                self.means.row(row)[0] = sum_of_squares::<V, f32>(update) / self.columns as f32;
            }
        }
    }
}

struct Subtract<'a> {
    updates: &'a [f32],
    factors: &'a [f32],
    weights: Rows<'a, f32>,
}

impl Kernel for Subtract<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let weights = unsafe { self.weights.row(row) };
            let update = &self.updates[row * weights.len()..][..weights.len()];
            let factor = V::splat(self.factors[row]);
            let mut at = 0;
            while at < weights.len() {
                store(load::<V, _>(weights, at) - load::<V, _>(update, at) * factor, weights, at);
                at += LANES;
            }
        }
    }
}
