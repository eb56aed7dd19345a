//! How repetitive a text is, as Python calls it.

use super::guarded;
use pyo3::prelude::*;
use std::sync::Mutex;

/// Reads documents twice: `add` them all, `begin_counting`, and `add` them again.
#[pyclass(frozen)]
pub struct Repetition(Mutex<crate::repetition::Repetition>);

#[pymethods]
impl Repetition {
    #[new]
    fn new(ngram: usize) -> PyResult<Self> {
        guarded(|| Ok(Repetition(Mutex::new(crate::repetition::Repetition::new(ngram.max(1))))))
    }

    fn add(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<()> {
        guarded(|| {
            py.detach(|| {
                let mut repetition = self.0.lock().unwrap();
                texts.iter().for_each(|text| repetition.add(text));
            });
            Ok(())
        })
    }

    fn begin_counting(&self) -> PyResult<()> {
        guarded(|| {
            self.0.lock().unwrap().begin_counting();
            Ok(())
        })
    }

    /// JSON: documents, and after the second reading at most `most` lines and n-grams.
    fn result(&self, most: usize) -> PyResult<String> {
        guarded(|| Ok(self.0.lock().unwrap().to_json(most).to_string()))
    }
}
