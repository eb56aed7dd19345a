//! Batches for training, as NumPy arrays.

use super::{guarded, raise};
use crate::error::{Error, Result, option};
use crate::loading::{self, IdType, Rows, Schedule, Shuffle, Tokens, TokensSpec, Turns, Window, key};
use numpy::{PyArray1, PyArray2, PyArrayMethods, get_array_module};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

type Array<'py> = Bound<'py, PyArray2<i64>>;
type Arrays<'py> = (Array<'py>, Array<'py>, Option<(Array<'py>, Array<'py>)>);

/// The examples of one or several datasets, and the order in which they come.
#[pyclass(frozen)]
pub struct Windows {
    windows: loading::Windows,
    schedule: Schedule,
    seq_len: usize,
}

#[pymethods]
impl Windows {
    /// `datasets` are `ramlet.loading.tokens.Tokens.spec()`.
    #[new]
    #[pyo3(signature = (datasets, *, seq_len, shuffle))]
    fn new(
        py: Python<'_>,
        datasets: Vec<Bound<'_, PyDict>>,
        seq_len: usize,
        shuffle: bool,
    ) -> PyResult<Self> {
        guarded(|| {
            let mut specs = Vec::with_capacity(datasets.len());
            let mut turns = Vec::with_capacity(datasets.len());
            for dataset in &datasets {
                let (spec, turn) = read_spec(dataset)?;
                specs.push(spec);
                turns.push(turn);
            }
            let tokens = py.detach(|| specs.into_iter().map(Tokens::new).collect::<Result<Vec<_>>>());
            let windows = loading::Windows::new(tokens.map_err(|error| raise(py, error))?, seq_len);
            Ok(Windows { windows, schedule: Schedule::new(turns, shuffle), seq_len })
        })
    }

    /// Samples `first`, `first + step`, ... as (inputs, labels, and with `documents` also (positions, documents)).
    #[pyo3(signature = (first, step, count, *, seed, documents))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        step: u64,
        count: usize,
        seed: u64,
        documents: bool,
    ) -> PyResult<Arrays<'py>> {
        guarded(|| {
            let samples = (0..count as u64)
                .map(|number| self.schedule.at(first.wrapping_add(number.wrapping_mul(step)), seed));
            self.rows(py, samples, count, documents)
        })
    }

    /// One example of one dataset, as a batch of one row.
    #[pyo3(signature = (dataset, example, *, documents))]
    fn example<'py>(
        &self,
        py: Python<'py>,
        dataset: usize,
        example: u64,
        documents: bool,
    ) -> PyResult<Arrays<'py>> {
        guarded(|| self.rows(py, std::iter::once(Window { dataset, example, offset: 0 }), 1, documents))
    }

    /// The dataset and the example that each of these samples is.
    #[pyo3(signature = (first, step, count, *, seed))]
    fn schedule(&self, first: u64, step: u64, count: usize, seed: u64) -> PyResult<Vec<(usize, u64)>> {
        guarded(|| {
            Ok((0..count as u64)
                .map(|number| self.schedule.at(first.wrapping_add(number.wrapping_mul(step)), seed))
                .map(|window| (window.dataset, window.example))
                .collect())
        })
    }
}

impl Windows {
    fn rows<'py>(
        &self,
        py: Python<'py>,
        windows: impl Iterator<Item = Window> + Send,
        count: usize,
        documents: bool,
    ) -> PyResult<Arrays<'py>> {
        // Allocated by numpy, which raises if the memory is not there; every element is written before it is read.
        let new = || -> PyResult<Array<'py>> {
            let made = get_array_module(py)?.call_method1("empty", ((count, self.seq_len), "i8"));
            let made = made.map_err(|error| {
                match error.is_instance_of::<PyMemoryError>(py) || error.is_instance_of::<PyValueError>(py) {
                    true => raise(
                        py,
                        Error::Invalid(format!(
                            "not enough memory for a batch of {count} sequences of {} tokens: lower {} or {}",
                            self.seq_len,
                            option("batch_size"),
                            option("micro_batch")
                        )),
                    ),
                    false => error,
                }
            })?;
            Ok(made.cast_into()?)
        };
        let (inputs, labels) = (new()?, new()?);
        let own = if documents { Some((new()?, new()?)) } else { None };
        // SAFETY: nobody else has the arrays yet, and they are contiguous.
        let places = |array: &Array<'py>| unsafe {
            std::slice::from_raw_parts_mut(array.data(), count * self.seq_len)
        };
        let mut rows = Rows {
            inputs: places(&inputs),
            labels: places(&labels),
            documents: own.as_ref().map(|(positions, numbers)| (places(positions), places(numbers))),
        };
        py.detach(|| self.windows.read(windows, &mut rows)).map_err(|error| raise(py, error))?;
        Ok((inputs, labels, own))
    }
}

/// The token files that the dict describes, and their turns in the schedule.
fn read_spec(dataset: &Bound<'_, PyDict>) -> PyResult<(TokensSpec, Turns)> {
    let py = dataset.py();
    let get = |key: &str| {
        dataset
            .get_item(key)?
            .ok_or_else(|| raise(py, Error::Invalid(format!("the setting {key:?} is missing"))))
    };
    let dtype: String = get("dtype")?.extract()?;
    let id = IdType::named(&dtype)
        .ok_or_else(|| raise(py, Error::Invalid(format!("unknown dtype {dtype:?} of token ids"))))?;
    let spec = TokensSpec {
        folder: get("folder")?.extract()?,
        shards: get("shards")?.extract()?,
        header: get("header")?.extract()?,
        id,
        start: get("start")?.extract()?,
        stride: get("stride")?.extract()?,
        pad_id: get("pad_id")?.extract()?,
        end_id: get("end_id")?.extract()?,
        vocab_size: get("vocab_size")?.extract()?,
    };
    let turns = Turns {
        examples: get("examples")?.extract()?,
        weight: get("weight")?.extract()?,
        stride: spec.stride,
        shifted: get("shifted")?.extract()?,
    };
    Ok((spec, turns))
}

/// 0..length in the order that the seed `words` gives.
#[pyfunction]
pub fn shuffled<'py>(py: Python<'py>, length: u64, words: Vec<u64>) -> PyResult<Bound<'py, PyArray1<u64>>> {
    guarded(|| {
        let shuffle = Shuffle::new(length, key(&words));
        Ok(PyArray1::from_iter(py, (0..length).map(|index| shuffle.at(index))))
    })
}
