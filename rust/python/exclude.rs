//! The evaluation set that `prepare` keeps out, as Python calls it.

use super::read::Input;
use super::{Stash, guarded, raise, watcher};
use crate::clean;
use crate::crew::{Progress, crew};
use crate::documents::Limits;
use crate::error::Error;
use crate::exclude::{Built, Reading, build};
use crate::prepare::{Job, contaminated};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

const BLOCK_BYTES: usize = 256 << 10;

/// Reads the files of an evaluation set and writes the sorted hashes of its n-grams to `path`. `clean` is JSON, as in a
/// plan. Returns the number of documents, of those with fewer words than an n-gram has, and of different n-grams.
#[pyfunction]
#[pyo3(signature = (files, read, path, *, clean, ngram, document_bytes, memory, window_bytes, total, progress))]
#[allow(clippy::too_many_arguments)]
pub fn build_exclude_set(
    py: Python<'_>,
    files: Py<PyAny>,
    read: &Bound<'_, PyDict>,
    path: PathBuf,
    clean: &str,
    ngram: usize,
    document_bytes: usize,
    memory: usize,
    window_bytes: u64,
    total: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u64, u64, u64)> {
    guarded(|| {
        let stash = Stash::default();
        let tracker = Progress::default();
        tracker.total.store(total, Relaxed);
        let clean: clean::Settings = serde_json::from_str(clean).map_err(|error| {
            raise(py, Error::Invalid(format!("cannot read the cleaning settings ({error})")))
        })?;
        let input = Input::from_dict(read)?;
        let spill_dir = path.parent().unwrap_or(&path).to_owned();
        let options =
            input.options(BLOCK_BYTES, window_bytes, spill_dir, Box::new(str::len), tracker.cancel_flag());
        let sources = input.sources(files, 1, options, &stash).map_err(|error| raise(py, error))?;
        let limits = Limits { max_bytes: document_bytes, max_bytes_whole_files: document_bytes };
        let mut watch = watcher(&stash, progress.as_ref());
        let built = py.detach(|| {
            // On a thread of its own, so that this one notices Ctrl-C.
            crew(1, &tracker, &mut watch, |_| {
                let reading = Reading { limits, clean: clean.clone(), n: ngram, memory };
                build(&sources, reading, &path, &tracker)
            })
        });
        let Built { documents, too_short, ngrams } = stash.raise(py, built)?.remove(0);
        Ok((documents, too_short, ngrams))
    })
}

/// Examples of the contaminated documents of a run whose scan is done, as JSON: a list of objects with source, document,
/// passage, and excluded_file and excluded_document, numbers in the evaluation set.
#[pyfunction]
pub fn contaminated_documents(py: Python<'_>, work: PathBuf, out: PathBuf) -> PyResult<String> {
    guarded(|| {
        let found = py.detach(|| contaminated(&Job::load(&work, &out)?));
        Ok(serde_json::json!(found.map_err(|error| raise(py, error))?).to_string())
    })
}
