//! Reading the files that Python lists.

use super::{Stash, guarded, raise, watcher};
use crate::crew::{Progress, crew};
use crate::error::{Error, Result};
use crate::pages::release_freed_memory;
use crate::source::{
    self, Block, Compression, Counters, Documents, FileSpec, Format, ReadOptions, Sources, StablePrefix,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// How to read the inputs: the keys of `ramlet.inputs.sources.ReadSettings`.
pub struct Input {
    documents: Documents,
    text_field: String,
    skip_broken: bool,
}

impl Input {
    pub fn from_dict(read: &Bound<'_, PyDict>) -> PyResult<Input> {
        let py = read.py();
        let get = |key: &str| {
            read.get_item(key)?
                .ok_or_else(|| raise(py, Error::Invalid(format!("the setting {key:?} is missing"))))
        };
        let separator: Option<String> = get("separator")?.extract()?;
        let documents = Documents::named(get("documents")?.extract()?, separator.as_deref());
        Ok(Input {
            documents: documents.map_err(|error| raise(py, error))?,
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
            longest_part: None,
            window_bytes,
            spill_dir,
            stable_prefix,
            cancelled,
        }
    }

    /// Reads the files that the iterator yields, each a `Listing`.
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

pub fn next_file(files: &Py<PyAny>, stash: &Stash) -> Result<Option<FileSpec>> {
    let next = stash.keep(Python::attach(|py| {
        let Some(item) = files.bind(py).try_iter()?.next() else {
            return Ok(None);
        };
        item?.extract::<Listing>().map(Some)
    }))?;
    next.map(file_spec).transpose()
}

/// `ramlet.inputs.sources.Source.spec()`: path, format, compression, size (-1: unknown) and modification time.
type Listing = (PathBuf, String, String, i64, i64);

fn file_spec((path, format, compression, size, modified): Listing) -> Result<FileSpec> {
    let unknown = |what: &str| Error::Invalid(format!("{} has an unknown {what}", path.display()));
    let size = u64::try_from(size).ok();
    Ok(FileSpec {
        format: Format::named(&format).ok_or_else(|| unknown("format"))?,
        compression: Compression::named(&compression).ok_or_else(|| unknown("compression"))?,
        size,
        modified: size.map(|_| modified),
        range: None,
        path,
    })
}

pub fn counters_dict<'py>(py: Python<'py>, counters: &Counters) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, count) in counters.by_name() {
        all.set_item(name, count)?;
    }
    all.set_item("examples", PyList::new(py, &counters.examples)?)?;
    Ok(all)
}

/// Reads text in blocks: `next_batch()` returns a list of (text, whether a document ends there).
#[pyclass(frozen)]
pub struct Reader {
    sources: Sources,
    block: Mutex<Block>,
    stash: Stash,
}

#[pymethods]
impl Reader {
    /// Texts are cut where `encoder` can encode the parts one by one, or after `longest_part` bytes (8 blocks if not
    /// given) if that is nowhere. `position` is the saved position of another reader of the same files, to resume from.
    #[new]
    #[pyo3(signature = (
        files, read, *, encoder, block_bytes, window_bytes, spill_dir, longest_part=None, position=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        files: Py<PyAny>,
        read: &Bound<'_, PyDict>,
        encoder: Option<Py<super::encode::Encoder>>,
        block_bytes: usize,
        window_bytes: u64,
        spill_dir: PathBuf,
        longest_part: Option<usize>,
        position: Option<&str>,
    ) -> PyResult<Self> {
        guarded(|| {
            let input = Input::from_dict(read)?;
            let cut: StablePrefix = match encoder {
                Some(encoder) => {
                    let shared = encoder.get().shared();
                    Box::new(move |text| shared.stable_prefix_plain(text))
                }
                None => Box::new(str::len),
            };
            let mut options = input.options(block_bytes, window_bytes, spill_dir, cut, Arc::default());
            options.longest_part = longest_part;
            let stash = Stash::default();
            let sources = input.sources(files, 1, options, &stash).map_err(|error| raise(py, error))?;
            if let Some(position) = position {
                let resumed = serde_json::from_str(position)
                    .map_err(|error| {
                        Error::Invalid(format!(
                            "cannot read the saved position ({error}): start from the beginning"
                        ))
                    })
                    .and_then(|position| sources.resume(position));
                stash.raise(py, resumed)?;
            }
            Ok(Reader { sources, block: Mutex::default(), stash })
        })
    }

    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        guarded(|| {
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
        })
    }

    /// Where the next batch begins, to be saved; None after an error.
    fn position(&self) -> PyResult<Option<String>> {
        guarded(|| {
            let position = self.sources.position();
            Ok(position.map(|position| serde_json::to_string(&position).expect("numbers and strings")))
        })
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| counters_dict(py, &self.sources.counters()))
    }
}

/// Every character of the sources, by code point, and the `most` frequent ones (ties: the smallest code point).
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
    guarded(|| {
        let stash = Stash::default();
        let tracker = Progress::default();
        tracker.total.store(total_bytes, std::sync::atomic::Ordering::Relaxed);
        let input = Input::from_dict(read)?;
        let options =
            input.options(block_bytes, window_bytes, spill_dir, Box::new(str::len), tracker.cancel_flag());
        let sources = input.sources(files, threads, options, &stash).map_err(|error| raise(py, error))?;
        let mut watch = watcher(&stash, progress.as_ref());
        let counted = py.detach(|| {
            let mut watch = |progress: &Progress| {
                progress.done.store(sources.counters().bytes_on_disk, std::sync::atomic::Ordering::Relaxed);
                watch(progress)
            };
            crew(threads, &tracker, &mut watch, |worker| {
                let mut counts = vec![0u64; char::MAX as usize + 1]; // touched only where text is
                let mut block = Block::new();
                while sources.next_block(worker, &mut block)? {
                    tracker.check()?;
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
                // Pages that were never written stay unmapped.
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
                    order.select_nth_unstable_by_key(most, |&code| {
                        (std::cmp::Reverse(sums[code as usize]), code)
                    });
                    order.truncate(most);
                }
                order.sort_unstable();
                characters_of(py, |code| order.binary_search(&code).is_ok())
            }
        };
        Ok((all, chosen, counters_dict(py, &sources.counters())?))
    })
}

/// The characters for which `is_there` is true, in order.
fn characters_of(py: Python<'_>, is_there: impl Fn(u32) -> bool) -> Bound<'_, PyString> {
    let found: String =
        (0..=char::MAX as u32).filter(|&code| is_there(code)).filter_map(char::from_u32).collect();
    PyString::new(py, &found)
}

/// The system gets back what took more than this: it was only looked at.
const LARGE_FOOTER: u64 = 1 << 20;

/// The memory that reading this column of a parquet file takes, without that of the text; less if the file is damaged.
#[pyfunction]
pub fn parquet_memory(py: Python<'_>, path: PathBuf, field: &str) -> PyResult<u64> {
    guarded(|| {
        let stash = Stash::default();
        let progress = Progress::default();
        let mut watch = watcher(&stash, None);
        let mut checked = Ok(());
        let memory = py.detach(|| {
            source::parquet_memory(&path, field, &mut || {
                checked = watch(&progress);
                if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        });
        stash.raise(py, checked)?;
        if memory > LARGE_FOOTER {
            release_freed_memory();
        }
        Ok(memory)
    })
}
