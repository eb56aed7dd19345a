//! The model: training and losses on the native core.

use super::{guarded, raise};
use crate::error::Error;
use crate::gpt::{Bad, Batch, Choice, Hyper, Layout, Model, Optimizer, Places, Precision, Shape, Tensor};
use crate::kernels::{BadLabel, BadPosition};
use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// Name, dtype, shape, and memory: its address and bytes.
type Described<'py> = (String, &'static str, Bound<'py, PyTuple>, (usize, usize));
type Ids<'py> = PyReadonlyArray2<'py, i64>;

#[pyclass]
pub struct NativeGPT(Model);

fn get<'py, V: FromPyObjectOwned<'py>>(shape: &Bound<'py, PyAny>, name: &str) -> PyResult<V> {
    shape.get_item(name)?.extract::<V>().map_err(Into::into)
}

pub(super) fn shape_of(shape: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let found = Shape {
        vocab: get(shape, "vocab_size")?,
        context: get(shape, "context")?,
        layers: get(shape, "layers")?,
        width: get(shape, "width")?,
        heads: get(shape, "heads")?,
        kv_heads: get(shape, "kv_heads")?,
        head_width: get(shape, "head_width")?,
        feed_forward: get(shape, "feed_forward")?,
        eps: get(shape, "norm_eps")?,
        tied: get(shape, "tied")?,
        qk_norm: get(shape, "qk_norm")?,
    };
    let sizes = [found.vocab, found.layers, found.width, found.heads, found.kv_heads, found.head_width];
    if sizes.contains(&0)
        || found.feed_forward == 0
        || !found.heads.is_multiple_of(found.kv_heads)
        || !found.head_width.is_multiple_of(2)
    {
        return Err(invalid(shape.py(), format!("{found:?} is not the shape of a model")));
    }
    Ok(found)
}

fn invalid(py: Python<'_>, sentence: String) -> PyErr {
    raise(py, Error::Invalid(sentence))
}

/// The first rows of a rotary table.
pub(super) fn table(shape: &Bound<'_, PyAny>, name: &str, count: usize) -> PyResult<Vec<f32>> {
    let py = shape.py();
    let bytes = py.get_type::<PyBytes>().call1((shape.get_item(name)?,))?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    if bytes.len() < 4 * count {
        return Err(invalid(py, format!("the table {name:?} has {} bytes, not {}", bytes.len(), 4 * count)));
    }
    let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Ok(bytes[..4 * count].chunks_exact(4).map(number).collect())
}

#[allow(clippy::too_many_arguments)] // Python's keyword arguments
fn choice_of(
    py: Python<'_>,
    micro_batch: usize,
    seq_len: usize,
    chunk: usize,
    recompute: bool,
    optimizer: &str,
    weights: &str,
    compute: &str,
    dropout: f64,
    held: usize,
    unit: usize,
    training: bool,
    threads: usize,
) -> PyResult<Choice> {
    let precision = |name: &str| {
        Precision::named(name)
            .ok_or_else(|| invalid(py, format!("unknown precision {name:?}: choose fp32 or bf16")))
    };
    let named =
        Optimizer::named(optimizer).ok_or_else(|| invalid(py, format!("unknown optimizer {optimizer:?}")))?;
    let (weights, compute) = (precision(weights)?, precision(compute)?);
    if training && !named.updates(weights) {
        return Err(invalid(py, format!("{optimizer} cannot update bf16 weights: use an 8-bit optimizer")));
    }
    if micro_batch == 0 || seq_len == 0 || chunk == 0 || !(0.0..1.0).contains(&dropout) {
        return Err(invalid(py, "micro_batch, seq_len and chunk must be at least 1, dropout below 1".into()));
    }
    let threads = threads.max(1);
    let optimizer = named;
    Ok(Choice {
        micro_batch,
        seq_len,
        chunk,
        recompute,
        optimizer,
        weights,
        compute,
        dropout,
        held,
        unit,
        training,
        threads,
    })
}

#[pymethods]
impl NativeGPT {
    #[new]
    #[pyo3(signature = (shape, *, micro_batch, seq_len, chunk, recompute, optimizer, weights, compute, dropout,
                        document_mask, held, unit, training, threads))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        micro_batch: usize,
        seq_len: usize,
        chunk: usize,
        recompute: bool,
        optimizer: &str,
        weights: &str,
        compute: &str,
        dropout: f64,
        document_mask: bool,
        held: usize,
        unit: usize,
        training: bool,
        threads: usize,
    ) -> PyResult<NativeGPT> {
        guarded(|| {
            let _ = document_mask; // attention needs no mask in memory
            let choice = choice_of(
                py,
                micro_batch,
                seq_len,
                chunk,
                recompute,
                optimizer,
                weights,
                compute,
                dropout,
                held,
                unit,
                training,
                threads,
            )?;
            let sizes = shape_of(shape)?;
            let count = seq_len * sizes.head_width / 2;
            let (cos, sin) = (table(shape, "cos", count)?, table(shape, "sin", count)?);
            let model = Model::new(sizes, choice, &cos, &sin).map_err(|error| {
                PyMemoryError::new_err(format!("the memory of a model cannot be allocated: {error}"))
            })?;
            Ok(NativeGPT(model))
        })
    }

    /// Bytes by part. Together they are the memory of the model that becomes resident.
    #[staticmethod]
    #[pyo3(signature = (shape, *, micro_batch, seq_len, chunk, recompute, optimizer, weights, compute, dropout,
                        document_mask, held, unit, training, threads))]
    #[allow(clippy::too_many_arguments)]
    fn parts<'py>(
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        micro_batch: usize,
        seq_len: usize,
        chunk: usize,
        recompute: bool,
        optimizer: &str,
        weights: &str,
        compute: &str,
        dropout: f64,
        document_mask: bool,
        held: usize,
        unit: usize,
        training: bool,
        threads: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let _ = document_mask;
            let choice = choice_of(
                py,
                micro_batch,
                seq_len,
                chunk,
                recompute,
                optimizer,
                weights,
                compute,
                dropout,
                held,
                unit,
                training,
                threads,
            )?;
            let shape = shape_of(shape)?;
            let parts = Layout::new(&shape, &Places::new(&shape), &choice).parts;
            let named = PyDict::new(py);
            named.set_item("weights", parts.weights)?;
            named.set_item("gradients", parts.gradients)?;
            named.set_item("optimizer", parts.optimizer)?;
            named.set_item("activations", parts.activations - parts.unwritten)?;
            named.set_item("logits", parts.logits)?;
            Ok(named)
        })
    }

    /// The weights: name, dtype, shape, and where they are in memory.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        guarded(|| {
            let found = self.0.layout().tensors(self.0.places(), self.0.choice(), false);
            self.described(py, found)
        })
    }

    /// The gradients, as `tensors`; in 8 bits, their codes. Those of the embedding that are held back are not in it.
    fn gradients<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        guarded(|| match self.0.choice().training {
            true => self.described(py, self.0.layout().tensors(self.0.places(), self.0.choice(), true)),
            false => Ok(Vec::new()),
        })
    }

    /// The optimizer's states, as `tensors`.
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        guarded(|| {
            let groups = self.0.layout().groups.iter();
            self.described(py, groups.flat_map(|group| group.tensors()).collect())
        })
    }

    /// New weights, by the seed; states and gradients are zero afterwards.
    fn initialize(&mut self, py: Python<'_>, seed: u64) -> PyResult<()> {
        guarded(|| {
            py.detach(|| self.0.initialize(seed));
            Ok(())
        })
    }

    /// The summed loss of a micro-batch; adds `scale` times its gradient to the gradients.
    #[pyo3(signature = (input_ids, targets, position_ids, document_ids, dropout_keys, scale))]
    #[allow(clippy::too_many_arguments)]
    fn learn(
        &mut self,
        py: Python<'_>,
        input_ids: Ids<'_>,
        targets: Ids<'_>,
        position_ids: Option<Ids<'_>>,
        document_ids: Option<Ids<'_>>,
        dropout_keys: Option<PyReadonlyArray1<'_, i64>>,
        scale: f32,
    ) -> PyResult<f64> {
        guarded(|| {
            if !self.0.choice().training {
                return Err(invalid(py, "this model was made without training".into()));
            }
            let mut batch =
                self.batch(py, &input_ids, &targets, position_ids.as_ref(), document_ids.as_ref())?;
            if self.0.choice().dropout > 0.0 {
                batch.keys = dropout_keys.as_ref().map(|keys| keys.as_slice()).transpose()?;
                let sequences = input_ids.shape()[0];
                if batch.keys.is_none_or(|keys| keys.len() != sequences) {
                    return Err(invalid(py, format!("dropout needs {sequences} dropout_keys")));
                }
            }
            if batch.ids.is_empty() {
                return Ok(0.0);
            }
            let model = &mut self.0;
            py.detach(|| model.learn(batch, scale)).map_err(|bad| self.out_of_range(bad))
        })
    }

    /// The loss of every token; 0 for ignored ones.
    fn losses(
        &mut self,
        py: Python<'_>,
        input_ids: Ids<'_>,
        targets: Ids<'_>,
        position_ids: Option<Ids<'_>>,
        document_ids: Option<Ids<'_>>,
    ) -> PyResult<Vec<f32>> {
        guarded(|| {
            let batch = self.batch(py, &input_ids, &targets, position_ids.as_ref(), document_ids.as_ref())?;
            let mut losses = vec![0.0; batch.ids.len()];
            if losses.is_empty() {
                return Ok(losses);
            }
            let model = &mut self.0;
            py.detach(|| model.losses(batch, &mut losses)).map_err(|bad| self.out_of_range(bad))?;
            Ok(losses)
        })
    }

    /// An optimizer step; returns the gradient norm. `hyper` is beta1, beta2, eps and the weight decay.
    fn update(
        &mut self,
        py: Python<'_>,
        rate: f64,
        clip: f64,
        correction: f64,
        hyper: (f64, f64, f64, f64),
        seed: u64,
    ) -> PyResult<f64> {
        guarded(|| {
            if !self.0.choice().training {
                return Err(invalid(py, "this model was made without training".into()));
            }
            let (beta1, beta2, eps, weight_decay) = hyper;
            let hyper = Hyper { beta1, beta2, eps, weight_decay, seed };
            Ok(py.detach(|| self.0.update(rate, clip, correction, hyper)))
        })
    }
}

impl NativeGPT {
    fn described<'py>(&self, py: Python<'py>, tensors: Vec<Tensor>) -> PyResult<Vec<Described<'py>>> {
        let one = |tensor: Tensor| {
            let memory = (self.0.address(tensor.span), tensor.span.bytes);
            Ok((tensor.name, tensor.dtype, PyTuple::new(py, tensor.shape)?, memory))
        };
        tensors.into_iter().map(one).collect()
    }

    /// The arrays of a batch, if they fit together and into the model's memory.
    fn batch<'a>(
        &self,
        py: Python<'_>,
        ids: &'a Ids<'_>,
        labels: &'a Ids<'_>,
        positions: Option<&'a Ids<'_>>,
        documents: Option<&'a Ids<'_>>,
    ) -> PyResult<Batch<'a>> {
        let size = ids.shape();
        let choice = self.0.choice();
        let others = [Some(labels), positions, documents];
        if others.iter().flatten().any(|other| other.shape() != size) {
            return Err(invalid(py, format!("the arrays of a batch have other shapes than {size:?}")));
        }
        if size[1] == 0 || size[1] > choice.seq_len || size[0].saturating_mul(size[1]) > choice.tokens() {
            return Err(invalid(
                py,
                format!(
                    "a batch of {} sequences of {} tokens does not fit a model for {} of {}",
                    size[0], size[1], choice.micro_batch, choice.seq_len
                ),
            ));
        }
        Ok(Batch {
            ids: ids.as_slice()?,
            labels: labels.as_slice()?,
            positions: positions.map(|positions| positions.as_slice()).transpose()?,
            documents: documents.map(|documents| documents.as_slice()).transpose()?,
            keys: None,
            seq_len: size[1],
        })
    }

    fn out_of_range(&self, bad: Bad) -> PyErr {
        let vocab = self.0.shape().vocab;
        PyIndexError::new_err(match bad {
            Bad::Id(id) => format!("token {id} is outside the vocabulary of {vocab}"),
            Bad::Label(BadLabel(label)) => format!("label {label} is outside the vocabulary of {vocab}"),
            Bad::Position(BadPosition(position)) => {
                format!("position {position} is outside the context of {}", self.0.choice().seq_len)
            }
        })
    }
}
