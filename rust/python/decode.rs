//! Generating: the next logits of a model whose weights another object owns, and the choice of a token.

use super::gpt::{shape_of, table};
use super::guarded;
use super::kernels::read;
use crate::gpt::{Chooser, Decoder, Flat, Limits, NotANumber, OutOfMemory, Places, Sampling, Weights, named};
use crate::kernels::Bf16;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

/// Name, type, shape, and memory as address and bytes.
type Tensor = (String, String, Vec<usize>, (usize, usize));

enum Running {
    Wide(Decoder<f32>),
    Narrow(Decoder<Bf16>),
}

/// Uses the decoder, whichever it is.
macro_rules! either {
    ($running:expr, $decoder:ident => $call:expr) => {
        match $running {
            Running::Wide($decoder) => $call,
            Running::Narrow($decoder) => $call,
        }
    };
}

/// A KV cache, and a forward pass of the newest tokens.
#[pyclass]
pub struct NativeDecoder {
    running: Running,
    matrices: usize,
    gains: usize,
    sizes: (usize, usize),
    /// Keeps the weights' memory.
    _owner: Py<PyAny>,
}

#[pymethods]
impl NativeDecoder {
    /// `shape` is `Shape.to_dict()` with `cos` and `sin`; `tensors` are the weights, which `owner` keeps in memory.
    #[new]
    #[pyo3(signature = (shape, owner, tensors, *, rows, capacity, tokens, threads))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        shape: &Bound<'_, PyMapping>,
        owner: Py<PyAny>,
        tensors: Vec<Tensor>,
        rows: usize,
        capacity: usize,
        tokens: usize,
        threads: usize,
    ) -> PyResult<Self> {
        guarded(|| {
            let (sizes, limits) = (shape_of(shape.as_any())?, Limits { rows, capacity, tokens, threads });
            if rows == 0 || capacity == 0 || tokens < rows {
                return Err(PyValueError::new_err("there is no room for a token of each row"));
            }
            let places = Places::new(&sizes);
            let found = Found::new(&places, &tensors)?;
            let count = limits.table(&sizes);
            let (cos, sin) = (table(shape.as_any(), "cos", count)?, table(shape.as_any(), "sin", count)?);
            let running = py.detach(|| match found.bf16 {
                true => Decoder::new(sizes, limits, cos, sin).map(Running::Narrow),
                false => Decoder::new(sizes, limits, cos, sin).map(Running::Wide),
            });
            let running = running.map_err(|OutOfMemory| {
                PyMemoryError::new_err("the memory to generate text cannot be allocated")
            })?;
            let sizes = (places.matrices, places.gains);
            Ok(NativeDecoder { running, matrices: found.matrices, gains: found.gains, sizes, _owner: owner })
        })
    }

    /// Bytes of the KV cache, and of everything else.
    #[staticmethod]
    #[pyo3(signature = (shape, *, bf16, rows, capacity, tokens, threads))]
    fn bytes(
        shape: &Bound<'_, PyMapping>,
        bf16: bool,
        rows: usize,
        capacity: usize,
        tokens: usize,
        threads: usize,
    ) -> PyResult<(usize, usize)> {
        guarded(|| {
            let (shape, limits) = (shape_of(shape.as_any())?, Limits { rows, capacity, tokens, threads });
            let (cache, all) = match bf16 {
                true => {
                    (Decoder::<Bf16>::cache_bytes(&shape, limits), Decoder::<Bf16>::bytes(&shape, limits))
                }
                false => (Decoder::<f32>::cache_bytes(&shape, limits), Decoder::<f32>::bytes(&shape, limits)),
            };
            Ok((cache, all - cache))
        })
    }

    #[getter]
    fn length(&self) -> PyResult<usize> {
        guarded(|| Ok(either!(&self.running, decoder => decoder.length())))
    }

    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        guarded(|| Ok(either!(&self.running, decoder => decoder.limits().capacity)))
    }

    /// The next ids of the first rows, equally many of each.
    fn feed(&mut self, py: Python<'_>, ids: Vec<Vec<i64>>) -> PyResult<()> {
        guarded(|| {
            let (vocab, limits, length) = either!(&self.running, decoder => {
                (decoder.shape().vocab as i64, decoder.limits(), decoder.length())
            });
            let (rows, count) = (ids.len(), ids.first().map_or(0, Vec::len));
            let fits = count > 0
                && rows <= limits.rows
                && rows * count <= limits.tokens
                && length + count <= limits.capacity
                && ids.iter().all(|row| row.len() == count);
            if !fits {
                return Err(PyValueError::new_err("more ids than there is memory for"));
            }
            let flat = ids.concat();
            if let Some(id) = flat.iter().find(|id| !(0..vocab).contains(*id)) {
                return Err(PyIndexError::new_err(format!("id {id} is outside the vocabulary of {vocab}")));
            }
            let (matrices, gains, sizes) = (self.matrices, self.gains, self.sizes);
            let running = &mut self.running;
            // SAFETY: `new` has checked the tensors, and their owner is alive.
            py.detach(|| unsafe {
                either!(running, decoder => decoder.feed(weights(matrices, gains, sizes), &flat, rows));
            });
            Ok(())
        })
    }

    /// The logits after the last ids, (rows, vocabulary).
    fn logits<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        guarded(|| {
            let size = either!(&self.running, decoder => [decoder.last_rows(), decoder.shape().vocab]);
            let out = PyArray2::zeros(py, size, false);
            let mut written = out.readwrite();
            let memory = written.as_slice_mut()?;
            let (matrices, gains, sizes) = (self.matrices, self.gains, self.sizes);
            let running = &mut self.running;
            // SAFETY: as in `feed`.
            py.detach(|| unsafe {
                either!(running, decoder => decoder.logits(weights(matrices, gains, sizes), memory));
            });
            drop(written);
            Ok(out)
        })
    }

    /// Copies what is cached of the first row to all others.
    fn spread(&mut self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            let running = &mut self.running;
            py.detach(|| either!(running, decoder => decoder.spread()));
            Ok(())
        })
    }

    /// Forgets all tokens.
    fn clear(&mut self) -> PyResult<()> {
        guarded(|| {
            either!(&mut self.running, decoder => decoder.clear());
            Ok(())
        })
    }
}

/// # Safety
/// As `read`.
unsafe fn weights<'a, T>(matrices: usize, gains: usize, sizes: (usize, usize)) -> Weights<'a, T> {
    // SAFETY: by the caller's word.
    unsafe { Weights { matrices: read(matrices, sizes.0), gains: read(gains, sizes.1) } }
}

/// Where the two flat arrays are.
struct Found {
    bf16: bool,
    matrices: usize,
    gains: usize,
}

impl Found {
    /// Checks that every weight is where `Places` says.
    fn new(places: &Places, tensors: &[Tensor]) -> PyResult<Found> {
        let tensor = |name: &str| {
            let found = tensors.iter().find(|tensor| tensor.0 == name);
            found.ok_or_else(|| PyValueError::new_err(format!("there is no weight {name}")))
        };
        let bf16 = tensor("embedding")?.1 == "BF16";
        let (matrices, gains) = (tensor("embedding")?.3.0, tensor("layers.0.norm_attention")?.3.0);
        for (name, flat, place) in named(places) {
            let (_, dtype, _, (address, bytes)) = tensor(&name)?;
            let (wanted, base, item) = match flat {
                Flat::Matrices if bf16 => ("BF16", matrices, size_of::<Bf16>()),
                Flat::Matrices => ("F32", matrices, size_of::<f32>()),
                Flat::Gains => ("F32", gains, size_of::<f32>()),
            };
            let size = place.rows * place.columns * item;
            if dtype != wanted || *address != base + place.start * item || *bytes != size || base % item != 0
            {
                return Err(PyValueError::new_err(format!("the weight {name} has another type or place")));
            }
        }
        Ok(Found { bf16, matrices, gains })
    }
}

/// Chooses the next tokens of several samples.
#[pyclass]
pub struct NativeChooser {
    chooser: Chooser,
    samples: usize,
}

#[pymethods]
impl NativeChooser {
    /// `known` has a byte for every id, 0 for those that are never chosen.
    #[new]
    #[pyo3(signature = (vocab, samples, *, temperature, top_k, top_p, repetition_penalty, prompt, known))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        vocab: usize,
        samples: usize,
        temperature: f64,
        top_k: Option<usize>,
        top_p: Option<f64>,
        repetition_penalty: f32,
        prompt: Vec<usize>,
        known: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        guarded(|| {
            let known: Vec<bool> = known.unwrap_or_default().into_iter().map(|known| known != 0).collect();
            if prompt.iter().any(|&id| id >= vocab) || !(known.is_empty() || known.len() == vocab) {
                return Err(PyIndexError::new_err("an id of another vocabulary"));
            }
            let sampling = Sampling { temperature, top_k, top_p, repetition_penalty };
            let mut chooser = Chooser::new(sampling, vocab, samples, known);
            for sample in 0..samples {
                for &id in &prompt {
                    chooser.see(sample, id);
                }
            }
            Ok(NativeChooser { chooser, samples })
        })
    }

    /// All memory that it takes.
    #[staticmethod]
    #[pyo3(signature = (vocab, samples, *, top_p, repetition_penalty))]
    fn bytes(vocab: usize, samples: usize, top_p: Option<f64>, repetition_penalty: f32) -> PyResult<usize> {
        guarded(|| {
            let sampling = Sampling { temperature: 1.0, top_k: None, top_p, repetition_penalty };
            Ok(Chooser::bytes(&sampling, vocab, samples))
        })
    }

    /// The next id of every sample, for a random number in [0, 1) each; None if a logit is NaN.
    fn choose(
        &mut self,
        py: Python<'_>,
        logits: PyReadonlyArray2<'_, f32>,
        draws: Vec<f64>,
    ) -> PyResult<Option<Vec<usize>>> {
        guarded(|| {
            let logits = self.checked(&logits)?;
            let chooser = &mut self.chooser;
            let rows = logits.chunks_exact(chooser.vocab()).zip(draws).enumerate();
            let choose = |(sample, (logits, draw))| chooser.choose(sample, logits, draw);
            let chosen: Result<Vec<usize>, NotANumber> = py.detach(|| rows.map(choose).collect());
            Ok(chosen.ok())
        })
    }

    /// For the tests: the probabilities of a sample's next token, up to a common factor; None if a logit is NaN.
    fn shares<'py>(
        &mut self,
        py: Python<'py>,
        logits: PyReadonlyArray2<'_, f32>,
        sample: usize,
    ) -> PyResult<Option<Bound<'py, PyArray1<f32>>>> {
        guarded(|| {
            let logits = self.checked(&logits)?;
            let vocab = self.chooser.vocab();
            let shares = self.chooser.shares(sample, &logits[sample * vocab..][..vocab]);
            Ok(shares.ok().map(|shares| PyArray1::from_slice(py, shares)))
        })
    }
}

impl NativeChooser {
    fn checked<'a>(&self, logits: &'a PyReadonlyArray2<'_, f32>) -> PyResult<&'a [f32]> {
        let found = logits.as_slice()?;
        match found.len() == self.samples * self.chooser.vocab() {
            true => Ok(found),
            false => Err(PyIndexError::new_err("logits of another vocabulary")),
        }
    }
}
