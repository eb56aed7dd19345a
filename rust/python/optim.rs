//! Steps of the optimizers, in place on memory that torch owns.

use super::kernels::write;
use super::{guarded, raise};
use crate::adamw8bit::{BLOCK, Moments, Number, Step, momentum, step, subtract};
use crate::error::Error;
use crate::kernels::{Line, Matrix, MuonSettings, muon, muon_scratch};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

/// fp32, or the bits of bf16.
#[derive(FromPyObject)]
pub enum Weights<'py> {
    Wide(PyReadwriteArray1<'py, f32>),
    Narrow(PyReadwriteArray1<'py, u16>),
}

#[derive(FromPyObject)]
pub enum Gradients<'py> {
    Wide(PyReadonlyArray1<'py, f32>),
    Narrow(PyReadonlyArray1<'py, u16>),
}

/// One step of AdamW over one tensor; `factors` are those of `adamw8bit::Step`, in their order.
#[pyfunction]
#[pyo3(signature = (weights, gradients, first, first_scales, root, root_scales, *, factors, rounding_key, first_index, threads))]
#[allow(clippy::too_many_arguments)] // the tensors and scalars of one parameter
pub fn adamw8bit_step(
    py: Python<'_>,
    mut weights: Weights<'_>,
    gradients: Gradients<'_>,
    mut first: PyReadwriteArray1<'_, u8>,
    mut first_scales: PyReadwriteArray1<'_, f32>,
    mut root: PyReadwriteArray1<'_, u8>,
    mut root_scales: PyReadwriteArray1<'_, f32>,
    factors: [f32; 7],
    rounding_key: u32,
    first_index: u64,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        let [first_decay, first_gain, root_decay, root_gain, rate, eps, keep] = factors;
        let settings = Step {
            first_decay,
            first_gain,
            root_decay,
            root_gain,
            rate,
            eps,
            keep,
            rounding_key,
            first_index,
        };
        let moments = Moments {
            first: first.as_slice_mut()?,
            first_scales: first_scales.as_slice_mut()?,
            root: root.as_slice_mut()?,
            root_scales: root_scales.as_slice_mut()?,
        };
        match (&mut weights, &gradients) {
            (Weights::Wide(w), Gradients::Wide(g)) => {
                run(py, w.as_slice_mut()?, g.as_slice()?, moments, &settings, threads)
            }
            (Weights::Wide(w), Gradients::Narrow(g)) => {
                run(py, w.as_slice_mut()?, g.as_slice()?, moments, &settings, threads)
            }
            (Weights::Narrow(w), Gradients::Wide(g)) => {
                run(py, w.as_slice_mut()?, g.as_slice()?, moments, &settings, threads)
            }
            (Weights::Narrow(w), Gradients::Narrow(g)) => {
                run(py, w.as_slice_mut()?, g.as_slice()?, moments, &settings, threads)
            }
        }
    })
}

/// A step of Muon's momentum over one tensor; the gradients become the directions of the step.
#[pyfunction]
#[pyo3(signature = (gradients, codes, scales, *, decay, gain, threads))]
pub fn momentum8bit_step(
    py: Python<'_>,
    mut gradients: Weights<'_>,
    mut codes: PyReadwriteArray1<'_, i8>,
    mut scales: PyReadwriteArray1<'_, f32>,
    decay: f32,
    gain: f32,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        let (codes, scales) = (codes.as_slice_mut()?, scales.as_slice_mut()?);
        let (count, blocks) = (codes.len(), codes.len().div_ceil(BLOCK));
        let given = match &gradients {
            Weights::Wide(wide) => wide.len()?,
            Weights::Narrow(narrow) => narrow.len()?,
        };
        if given != count || scales.len() != blocks {
            return Err(raise(py, other_size(given)));
        }
        match &mut gradients {
            Weights::Wide(wide) => {
                let wide = wide.as_slice_mut()?;
                py.detach(|| momentum(wide, codes, scales, decay, gain, threads));
            }
            Weights::Narrow(narrow) => {
                let narrow = narrow.as_slice_mut()?;
                py.detach(|| momentum(narrow, codes, scales, decay, gain, threads));
            }
        }
        Ok(())
    })
}

/// `weights = keep * weights - changes` for bf16, rounded stochastically.
#[pyfunction]
#[pyo3(signature = (weights, changes, *, keep, rounding_key, first_index, threads))]
pub fn subtract_rounded(
    py: Python<'_>,
    mut weights: PyReadwriteArray1<'_, u16>,
    changes: PyReadonlyArray1<'_, f32>,
    keep: f32,
    rounding_key: u32,
    first_index: u64,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        let (weights, changes) = (weights.as_slice_mut()?, changes.as_slice()?);
        if weights.len() != changes.len() {
            return Err(raise(py, other_size(weights.len())));
        }
        py.detach(|| subtract(weights, changes, keep, rounding_key, first_index, threads));
        Ok(())
    })
}

fn other_size(count: usize) -> Error {
    Error::Invalid(format!(
        "the gradient or optimizer state of a parameter with {count} elements has another size: \
         load the state that was saved with this model"
    ))
}

fn run<W: Number, G: Number>(
    py: Python<'_>,
    weights: &mut [W],
    gradients: &[G],
    moments: Moments<'_>,
    settings: &Step,
    threads: usize,
) -> PyResult<()> {
    let (count, blocks) = (weights.len(), weights.len().div_ceil(BLOCK));
    let fits = [gradients.len(), moments.first.len(), moments.root.len()] == [count; 3]
        && [moments.first_scales.len(), moments.root_scales.len()] == [blocks; 2];
    if !fits {
        return Err(raise(py, other_size(count)));
    }
    py.detach(|| step(weights, gradients, moments, settings, threads));
    Ok(())
}

/// The bytes of scratch memory of `muon_update`, by the rows and columns of its matrices.
#[pyfunction]
pub fn muon_scratch_bytes(sizes: Vec<[usize; 2]>, threads: usize) -> PyResult<usize> {
    guarded(|| Ok(muon_scratch(&sizes, threads)))
}

/// Muon's update of matrices. Each is the addresses of its weights, direction and row squares, its rows and its columns.
///
/// As with the kernels, `ramlet/engines/torch/optim/native.py` is the only caller and guarantees addresses and sizes;
/// `scratch` is aligned to 64 bytes. `factors` are the margin, row decay, tiny and rate of `MuonSettings`.
#[pyfunction]
#[pyo3(signature = (matrices, *, coefficients, factors, scratch, scratch_bytes, threads))]
pub fn muon_update(
    py: Python<'_>,
    matrices: Vec<[usize; 5]>,
    coefficients: Vec<[f32; 3]>,
    factors: [f64; 4],
    scratch: usize,
    scratch_bytes: usize,
    threads: usize,
) -> PyResult<()> {
    guarded(|| {
        let [margin, row_decay, tiny, rate] = factors;
        let settings =
            MuonSettings { coefficients, margin, row_decay: row_decay as f32, tiny: tiny as f32, rate };
        // SAFETY: guaranteed by the caller, see above.
        let (matrices, scratch) = unsafe {
            let matrix = |[weights, direction, row_squares, rows, columns]: [usize; 5]| Matrix {
                weights: write(weights, rows * columns),
                direction: write(direction, rows * columns),
                row_squares: write(row_squares, rows),
            };
            let lines: &mut [Line] = write(scratch, scratch_bytes / size_of::<Line>());
            (matrices.into_iter().map(matrix).collect(), lines)
        };
        py.detach(|| muon(matrices, &settings, scratch, threads));
        Ok(())
    })
}
