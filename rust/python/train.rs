//! `train_bpe`: BPE training in one call.

use super::read::{Input, counters_dict};
use super::{Stash, guarded, pattern, raise, watcher};
use crate::count::{self, Feed};
use crate::count_parts;
use crate::crew::{Progress, crew};
use crate::error::{Error, Result};
use crate::merge::vocabulary::TieBreak;
use crate::source::{Block, Counters, Fragment, Sources};
use crate::specials::Specials;
use crate::spill::PARTITIONS;
use crate::tasks::Task;
use crate::train::{Settings, Shares, train, train_counted};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The least memory that `train_bpe` needs, in addition to what the process uses already.
#[pyfunction]
#[pyo3(signature = (threads, tokens, decoding = 0))]
pub fn least_memory(threads: usize, tokens: usize, decoding: usize) -> PyResult<usize> {
    guarded(|| Ok(Shares::least(threads, tokens, decoding)))
}

/// Texts from a Python iterator: each item is a list of documents.
struct Texts<'a> {
    iterator: Py<PyAny>,
    stash: &'a Stash,
    exhausted: Mutex<bool>,
    documents: AtomicU64,
    bytes: AtomicU64,
}

impl Feed for Texts<'_> {
    fn next_block(&self, _: usize, block: &mut Block) -> Result<bool> {
        let mut exhausted = self.exhausted.lock().unwrap();
        block.text.clear();
        block.fragments.clear();
        if *exhausted {
            return Ok(false);
        }
        let more = self.stash.keep(Python::attach(|py| {
            let Some(item) = self.iterator.bind(py).try_iter()?.next() else {
                return Ok(false);
            };
            for (document, text) in item?.try_iter()?.enumerate() {
                let text = text?;
                let start = block.text.len();
                block.text.push_str(text.extract::<&str>()?);
                let end = block.text.len();
                block.fragments.push(Fragment {
                    start,
                    end,
                    file: 0,
                    document: document as u64,
                    ends_document: true,
                });
            }
            Ok(true)
        }))?;
        *exhausted = !more;
        self.documents.fetch_add(block.fragments.len() as u64, Relaxed);
        self.bytes.fetch_add(block.text.len() as u64, Relaxed);
        Ok(more)
    }

    fn position(&self) -> Option<String> {
        None
    }

    fn resume(&self, _: &str) -> Result<()> {
        Err(Error::Invalid("training from an iterator cannot be resumed: start from the beginning".into()))
    }

    fn counters(&self) -> Counters {
        let bytes = self.bytes.load(Relaxed);
        let documents = self.documents.load(Relaxed);
        Counters { documents, bytes_on_disk: bytes, text_bytes: bytes, ..Counters::default() }
    }
}

/// Counts the pieces of one task of the tasks in `work/inputs`, for `merge_counts`.
#[pyfunction]
#[pyo3(signature = (work, task, *, read, pattern_name, specials, threads, memory, resident_limit, decoding))]
#[allow(clippy::too_many_arguments)]
pub fn count_task(
    py: Python<'_>,
    work: PathBuf,
    task: u32,
    read: &Bound<'_, PyDict>,
    pattern_name: &str,
    specials: Vec<String>,
    threads: usize,
    memory: usize,
    resident_limit: u64,
    decoding: usize,
) -> PyResult<()> {
    guarded(|| {
        let (stash, tracker) = (Stash::default(), Progress::default());
        let input = Input::from_dict(read)?;
        let outcome = py.detach(|| {
            let pattern = pattern(pattern_name)?;
            let specials = Arc::new(Specials::new(&specials)?);
            let shares = Shares::new(memory, threads, 0, decoding)?;
            let cut = {
                let (pattern, specials) = (pattern.clone(), specials.clone());
                Box::new(move |text: &str| specials.stable_prefix(&pattern, text, crate::count::MAX_PIECE))
            };
            let flag = tracker.cancel_flag();
            let options = input.options(shares.block_bytes, shares.window_bytes, work.clone(), cut, flag);
            let files = Task::load(&work.join("inputs"), task)?.files();
            let sources = Sources::new(files, threads, options)?;
            let settings = count::Settings {
                pattern: &pattern,
                specials: &specials,
                threads,
                memory: shares.tables,
                resident_limit: resident_limit / 64 * 63,
                checkpoint_every: Duration::MAX,
            };
            count_parts::count_task(&work, task, &sources, &settings, &tracker, &mut watcher(&stash, None))
        });
        stash.raise(py, outcome)
    })
}

/// Merges a partition of what was counted of all tasks, for `train_bpe`.
#[pyfunction]
#[pyo3(signature = (work, tasks, partition, *, memory))]
pub fn merge_counts(
    py: Python<'_>,
    work: PathBuf,
    tasks: u32,
    partition: usize,
    memory: usize,
) -> PyResult<()> {
    guarded(|| {
        let (stash, tracker) = (Stash::default(), Progress::default());
        let outcome = py.detach(|| {
            crew(1, &tracker, &mut watcher(&stash, None), |_| {
                count_parts::merge_runs(&work, tasks, partition, memory, &tracker)
            })
        });
        stash.raise(py, outcome).map(|_| ())
    })
}

/// The number of partitions of `merge_counts`.
#[pyfunction]
pub fn count_partitions() -> usize {
    PARTITIONS
}

#[pyfunction]
#[pyo3(signature = (
    *, files, texts, total_bytes, read, pattern_name, specials, tokens, min_frequency, max_token_bytes, tie_break,
    threads, memory, resident_limit, work_dir, signature, checkpoint_seconds, progress, decoding = 0,
    counted = None
))]
#[allow(clippy::too_many_arguments)]
pub fn train_bpe<'py>(
    py: Python<'py>,
    files: Option<Py<PyAny>>,
    texts: Option<Py<PyAny>>,
    total_bytes: u64,
    read: &Bound<'py, PyDict>,
    pattern_name: &str,
    specials: Vec<String>,
    tokens: usize,
    min_frequency: u64,
    max_token_bytes: usize,
    tie_break: &str,
    threads: usize,
    memory: usize,
    resident_limit: u64,
    work_dir: std::path::PathBuf,
    signature: String,
    checkpoint_seconds: f64,
    progress: Option<Py<PyAny>>,
    decoding: usize,
    counted: Option<PathBuf>,
) -> PyResult<Bound<'py, PyDict>> {
    guarded(|| {
        let stash = Stash::default();
        let prepared = (|| {
            let pattern = pattern(pattern_name)?;
            let shares = Shares::new(memory, threads, tokens, decoding)?;
            let tie_break = match tie_break {
                "hf" => TieBreak::SmallestIds,
                "bytes" => TieBreak::GreatestBytes,
                other => {
                    return Err(Error::Invalid(format!("unknown tie break {other:?}: use 'hf' or 'bytes'")));
                }
            };
            Ok((pattern, shares, tie_break, Specials::new(&specials)?))
        })();
        let (pattern, shares, tie_break, specials) = prepared.map_err(|error| raise(py, error))?;
        let settings = Settings {
            pattern: pattern.clone(),
            specials: Arc::new(specials),
            tokens,
            min_frequency,
            max_token_bytes,
            tie_break,
            threads,
            memory,
            decoding,
            resident_limit,
            work_dir,
            signature,
            checkpoint_every: Duration::from_secs_f64(checkpoint_seconds.clamp(0.0, 1e9)),
        };
        let tracker = Progress::default();
        tracker.total.store(total_bytes, Relaxed);
        let input = Input::from_dict(read)?;
        let mut watch = watcher(&stash, progress.as_ref());
        let outcome = match (files, texts) {
            (Some(files), None) => {
                let cut = {
                    let (pattern, specials) = (pattern.clone(), settings.specials.clone());
                    Box::new(move |text: &str| {
                        specials.stable_prefix(&pattern, text, crate::count::MAX_PIECE)
                    })
                };
                let options = input.options(
                    shares.block_bytes,
                    shares.window_bytes,
                    settings.work_dir.clone(),
                    cut,
                    tracker.cancel_flag(),
                );
                let sources =
                    input.sources(files, threads, options, &stash).map_err(|error| raise(py, error))?;
                py.detach(|| train(&sources, &settings, &tracker, &mut watch))
            }
            (None, Some(texts)) => {
                let feed = Texts {
                    iterator: texts.bind(py).try_iter()?.into_any().unbind(),
                    stash: &stash,
                    exhausted: Mutex::new(false),
                    documents: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                };
                py.detach(|| train(&feed, &settings, &tracker, &mut watch))
            }
            (None, None) if counted.is_some() => {
                let work = counted.expect("just seen");
                py.detach(|| train_counted(&work, &settings, &tracker, &mut watch))
            }
            _ => Err(Error::Invalid("give either files or texts".into())),
        };
        let trained = stash.raise(py, outcome)?;
        let all = PyDict::new(py);
        let tokens = trained.vocabulary.tokens().iter().map(|token| PyBytes::new(py, token));
        all.set_item("tokens", PyList::new(py, tokens)?)?;
        all.set_item("merges", PyList::new(py, trained.vocabulary.merges.iter().copied())?)?;
        all.set_item("read", counters_dict(py, &trained.read)?)?;
        all.set_item("pieces", trained.totals.pieces)?;
        all.set_item("cut_pieces", trained.totals.cut_pieces)?;
        all.set_item("distinct_pieces", trained.distinct)?;
        all.set_item("spilled_runs", trained.totals.runs)?;
        all.set_item("merge_phases", trained.phases.len())?;
        all.set_item("regex_failures", pattern.failures())?;
        let seconds = PyDict::new(py);
        for (name, value) in ["counting", "sorting", "merging"].iter().zip(trained.seconds) {
            seconds.set_item(name, value)?;
        }
        all.set_item("seconds", seconds)?;
        Ok(all)
    })
}
