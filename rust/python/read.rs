//! Files given by Python, read by the core.

use super::{Stash, raise, watcher};
use crate::crew::{Progress, crew};
use crate::error::{Error, Result};
use crate::source::{
    Block, Compression, Counters, Documents, FileSpec, Format, ReadOptions, Sources, StablePrefix,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// How Python asks for sources to be read: the keys of `ramlet.sources.ReadSettings`.
pub struct Input {
    documents: Documents,
    text_field: String,
    skip_broken: bool,
}

impl Input {
    pub fn from_dict(read: &Bound<'_, PyDict>) -> PyResult<Input> {
        let py = read.py();
        let get = |key: &str| {
            read.get_item(key)?.ok_or_else(|| raise(py, Error::Invalid(format!("no setting {key:?}"))))
        };
        let documents = match get("documents")?.extract::<&str>()? {
            "file" => Documents::File,
            "line" => Documents::Line,
            "separator" => Documents::Separator(get("separator")?.extract()?),
            other => {
                return Err(raise(
                    py,
                    Error::Invalid(format!("documents are 'file', 'line' or 'separator', not {other:?}")),
                ));
            }
        };
        Ok(Input {
            documents,
            text_field: get("text_field")?.extract()?,
            skip_broken: get("skip_broken")?.extract()?,
        })
    }

    pub fn options(
        &self,
        block_bytes: usize,
        window_bytes: u64,
        spill_dir: PathBuf,
        stable_prefix: StablePrefix,
        cancelled: Arc<AtomicBool>,
    ) -> ReadOptions {
        ReadOptions {
            documents: self.documents.clone(),
            text_field: self.text_field.clone(),
            skip_broken: self.skip_broken,
            block_bytes,
            window_bytes,
            spill_dir,
            stable_prefix,
            cancelled,
        }
    }

    /// Reads what the iterator names: tuples of path, format, compression and size (-1: not known).
    pub fn sources(
        &self,
        files: Py<PyAny>,
        lanes: usize,
        options: ReadOptions,
        stash: &Stash,
    ) -> Result<Sources> {
        let stash = stash.clone();
        Sources::new(Box::new(move || next_file(&files, &stash)), lanes, options)
    }
}

fn next_file(files: &Py<PyAny>, stash: &Stash) -> Result<Option<FileSpec>> {
    let next = stash.keep(Python::attach(|py| {
        let Some(item) = files.bind(py).try_iter()?.next() else {
            return Ok(None);
        };
        item?.extract::<(PathBuf, String, String, i64)>().map(Some)
    }))?;
    let Some((path, format, compression, size)) = next else {
        return Ok(None);
    };
    let unknown = |what: &str| Error::Invalid(format!("{} has an unknown {what}", path.display()));
    Ok(Some(FileSpec {
        format: Format::named(&format).ok_or_else(|| unknown("format"))?,
        compression: Compression::named(&compression).ok_or_else(|| unknown("compression"))?,
        size: u64::try_from(size).ok(),
        range: None,
        path,
    }))
}

pub fn counters_dict<'py>(py: Python<'py>, counters: &Counters) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("files", counters.files)?;
    all.set_item("documents", counters.documents)?;
    all.set_item("bytes_on_disk", counters.bytes_on_disk)?;
    all.set_item("text_bytes", counters.text_bytes)?;
    all.set_item("invalid_utf8", counters.invalid_utf8)?;
    all.set_item("lone_surrogates", counters.lone_surrogates)?;
    all.set_item("null_text", counters.null_text)?;
    all.set_item("broken_json", counters.broken_json)?;
    all.set_item("missing_field", counters.missing_field)?;
    all.set_item("not_a_string", counters.not_a_string)?;
    all.set_item("broken_files", counters.broken_files)?;
    all.set_item("examples", PyList::new(py, &counters.examples)?)?;
    Ok(all)
}

/// Hands out text a block at a time: `next_batch()` is a list of (text, whether a document ends there).
#[pyclass(frozen)]
pub struct Reader {
    sources: Sources,
    block: Mutex<Block>,
    stash: Stash,
}

#[pymethods]
impl Reader {
    /// Texts are cut where `encoder` can encode the parts one by one. `position` is where another reader of the same
    /// files stood.
    #[new]
    #[pyo3(signature = (files, read, *, encoder, block_bytes, window_bytes, spill_dir, position=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        files: Py<PyAny>,
        read: &Bound<'_, PyDict>,
        encoder: Option<Py<super::encode::Encoder>>,
        block_bytes: usize,
        window_bytes: u64,
        spill_dir: PathBuf,
        position: Option<&str>,
    ) -> PyResult<Self> {
        let input = Input::from_dict(read)?;
        let cut: StablePrefix = match encoder {
            Some(encoder) => {
                let shared = encoder.get().shared();
                Box::new(move |text| shared.stable_prefix_plain(text))
            }
            None => Box::new(str::len),
        };
        let options = input.options(block_bytes, window_bytes, spill_dir, cut, Arc::default());
        let stash = Stash::default();
        let sources = input.sources(files, 1, options, &stash).map_err(|error| raise(py, error))?;
        if let Some(position) = position {
            let resumed = serde_json::from_str(position)
                .map_err(|error| Error::Invalid(format!("the position cannot be read ({error}): start anew")))
                .and_then(|position| sources.resume(position));
            stash.raise(py, resumed)?;
        }
        Ok(Reader { sources, block: Mutex::default(), stash })
    }

    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut block = std::mem::take(&mut *self.block.lock().unwrap());
        let more = py.detach(|| self.sources.next_block(0, &mut block));
        let list = match self.stash.raise(py, more)? {
            false => None,
            true => {
                let batch: Vec<_> =
                    block.iter().map(|(fragment, text)| (text, fragment.ends_document)).collect();
                Some(PyList::new(py, batch)?)
            }
        };
        *self.block.lock().unwrap() = block;
        Ok(list)
    }

    /// Where the next batch begins, to be written down; None after an error.
    fn position(&self) -> Option<String> {
        let position = self.sources.position()?;
        Some(serde_json::to_string(&position).expect("numbers and strings"))
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters_dict(py, &self.sources.counters())
    }
}

/// Every character of the sources, by code point, and of them the `most` that are most frequent (the first of equals).
#[pyfunction]
#[pyo3(signature = (files, read, *, most, threads, block_bytes, window_bytes, spill_dir, total_bytes, progress))]
#[allow(clippy::too_many_arguments)]
pub fn count_characters<'py>(
    py: Python<'py>,
    files: Py<PyAny>,
    read: &Bound<'py, PyDict>,
    most: Option<usize>,
    threads: usize,
    block_bytes: usize,
    window_bytes: u64,
    spill_dir: PathBuf,
    total_bytes: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyString>, Bound<'py, PyDict>)> {
    let stash = Stash::default();
    let told = Progress::default();
    told.total.store(total_bytes, std::sync::atomic::Ordering::Relaxed);
    let input = Input::from_dict(read)?;
    let options = input.options(block_bytes, window_bytes, spill_dir, Box::new(str::len), told.cancel_flag());
    let sources = input.sources(files, threads, options, &stash).map_err(|error| raise(py, error))?;
    let mut watch = watcher(&stash, progress.as_ref());
    let counted = py.detach(|| {
        let mut watch = |progress: &Progress| {
            progress.done.store(sources.counters().bytes_on_disk, std::sync::atomic::Ordering::Relaxed);
            watch(progress)
        };
        crew(threads, &told, &mut watch, |worker| {
            let mut counts = vec![0u64; char::MAX as usize + 1]; // touched only where text is
            let mut block = Block::new();
            while sources.next_block(worker, &mut block)? {
                told.check()?;
                for (_, text) in block.iter() {
                    text.chars().for_each(|character| counts[character as usize] += 1);
                }
            }
            Ok(counts)
        })
    });
    let mut sums: Vec<u64> = Vec::new();
    for counts in stash.raise(py, counted)? {
        if sums.is_empty() {
            sums = counts;
        } else {
            // What is not touched stays so.
            sums.iter_mut()
                .zip(counts)
                .filter(|(_, count)| *count > 0)
                .for_each(|(sum, count)| *sum += count);
        }
    }
    let all = characters_of(py, |code| sums[code as usize] > 0);
    let chosen = match most {
        None => all.clone(),
        Some(most) => {
            let mut order: Vec<u32> =
                (0..=char::MAX as u32).filter(|&code| sums[code as usize] > 0).collect();
            if most < order.len() {
                order
                    .select_nth_unstable_by_key(most, |&code| (std::cmp::Reverse(sums[code as usize]), code));
                order.truncate(most);
            }
            order.sort_unstable();
            characters_of(py, |code| order.binary_search(&code).is_ok())
        }
    };
    Ok((all, chosen, counters_dict(py, &sources.counters())?))
}

/// The characters that are told to be there, in order.
fn characters_of(py: Python<'_>, is_there: impl Fn(u32) -> bool) -> Bound<'_, PyString> {
    let found: String =
        (0..=char::MAX as u32).filter(|&code| is_there(code)).filter_map(char::from_u32).collect();
    PyString::new(py, &found)
}
