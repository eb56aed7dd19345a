//! The stages of `prepare`, as Python calls them.

use super::encode::{Encoder, Shared};
use super::read::next_file;
use super::{Stash, guarded, raise, watcher};
use crate::crew::{Progress, crew};
use crate::dedup::{Unit, partitions};
use crate::encode::Batch;
use crate::error::{Error, Result};
use crate::own_files;
use crate::prepare::assemble::{assemble, assembled};
use crate::prepare::layout::lay_out;
use crate::prepare::near::{Decoding, commit_near_cache, compare, decide, drop_near, write_report};
use crate::prepare::{BufferSizes, Encoding, Job, Plan, Stage, check_caches, commit_cache, run_stage};
use crate::source::Documents;
use crate::tasks::{PlanOptions, plan};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh64::Xxh64;

/// Divides the inputs, each (path, format, compression, size or -1, modification time), into tasks listed in a folder.
/// Returns the number of tasks and of files, the bytes on disk and a fingerprint.
#[pyfunction]
#[pyo3(signature = (files, folder, *, documents, separator, task_bytes, whole_documents = false))]
pub fn plan_tasks(
    py: Python<'_>,
    files: Py<PyAny>,
    folder: PathBuf,
    documents: &str,
    separator: Option<String>,
    task_bytes: Option<u64>,
    whole_documents: bool,
) -> PyResult<(u32, u64, u64, String)> {
    guarded(|| {
        let stash = Stash::default();
        let documents =
            Documents::named(documents, separator.as_deref()).map_err(|error| raise(py, error))?;
        let options = PlanOptions { documents, target_bytes: task_bytes, whole_documents };
        let planned = py.detach(|| plan(|| next_file(&files, &stash), &options, &folder));
        let planned = stash.raise(py, planned)?;
        let fingerprint = planned.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((planned.tasks, planned.files, planned.total_bytes, fingerprint))
    })
}

/// The number of partitions for the hashes of an input of this size.
#[pyfunction]
pub fn dedup_partitions(total_bytes: u64, unit: &str) -> PyResult<u32> {
    guarded(|| Ok(partitions(total_bytes, if unit == "line" { Unit::Line } else { Unit::Document })))
}

/// The number of partitions for the band keys of an input of this size.
#[pyfunction]
pub fn near_partitions(total_bytes: u64, bands: usize) -> PyResult<u32> {
    guarded(|| Ok(crate::near::partitions(total_bytes, bands)))
}

/// The least memory of one worker under a plan, given as JSON, and what all workers share in addition; `merges` says
/// whether the encoder merges (BPE).
#[pyfunction]
pub fn least_room(py: Python<'_>, plan: &str, merges: bool) -> PyResult<(usize, usize)> {
    guarded(|| {
        let plan = parsed(plan).map_err(|error| raise(py, error))?;
        Ok((BufferSizes::least_memory(&plan), BufferSizes::shared_memory(&plan, merges)))
    })
}

/// Refuses a cache of a plan, given as JSON, that cannot be used with its settings.
#[pyfunction]
pub fn check_dedup_cache(py: Python<'_>, plan: &str) -> PyResult<()> {
    guarded(|| {
        let plan = parsed(plan).map_err(|error| raise(py, error))?;
        py.detach(|| check_caches(plan)).map_err(|error| raise(py, error))
    })
}

fn parsed(plan: &str) -> Result<Plan> {
    serde_json::from_str(plan).map_err(|error| Error::Invalid(format!("cannot read the plan ({error})")))
}

/// Runs those of the parts of a stage (`scan`, `settle`, `write`, `pair`, `compare`, `near`, `assemble`; `decide` and
/// `layout` have only one) that are not done yet. Writing needs an encoder: the native one, or a callable from a list of
/// texts to (ids as uint32, ends as uint64). Comparing (`compare`, `decide`, `near`) needs the native one, or `decode`,
/// from a list of ids to bytes.
#[pyfunction]
#[pyo3(signature = (work, out, stage, parts, *, encoder, encode, decode, memory, threads, total, progress))]
#[allow(clippy::too_many_arguments)]
pub fn run_prepare_stage(
    py: Python<'_>,
    work: PathBuf,
    out: PathBuf,
    stage: &str,
    parts: Vec<u32>,
    encoder: Option<Py<Encoder>>,
    encode: Option<Py<PyAny>>,
    decode: Option<Py<PyAny>>,
    memory: usize,
    threads: usize,
    total: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    guarded(|| {
        let stash = Stash::default();
        let tracker = Progress::default();
        tracker.total.store(total, Relaxed);
        let shared = encoder.map(|encoder| encoder.get().shared());
        let foreign = |texts: &[&str]| -> Result<Batch<u32>> {
            stash.keep(Python::attach(|py| {
                let encode = encode.as_ref().expect("only called where there is one");
                let result = encode.call1(py, (texts.to_vec(),))?;
                let (ids, ends): (PyReadonlyArray1<'_, u32>, PyReadonlyArray1<'_, u64>) =
                    result.bind(py).extract()?;
                Ok(Batch { ids: ids.as_slice()?.to_vec(), ends: ends.as_slice()?.to_vec() })
            }))
        };
        let decoder = Decoder { shared: shared.clone(), decode, stash: stash.clone() };
        let result = py.detach(|| {
            let job = Job::load(&work, &out)?;
            let decode = |ids: &[u32], text: &mut Vec<u8>| decoder.append(ids, text);
            let decoding = Decoding { decode: &decode, in_parts: shared.is_some() };
            let watch = &mut watcher(&stash, progress.as_ref());
            match stage {
                "compare" => return compare(&job, &parts, &decoding, memory, threads, &tracker, watch),
                "decide" => return decide(&job, &decoding, memory, &tracker, watch),
                "near" => return drop_near(&job, &parts, &decoding, threads, &tracker, watch),
                // On a thread of its own, so that this one notices Ctrl-C.
                "layout" => return crew(1, &tracker, watch, |_| lay_out(&job, &tracker)).map(|_| ()),
                "assemble" => return assemble(&job, &parts, threads, &tracker, watch),
                _ => {}
            }
            let stage =
                Stage::named(stage).ok_or_else(|| Error::Invalid(format!("unknown stage {stage:?}")))?;
            let encoding = match (&shared, &encode) {
                (Some(shared), _) => Some(Encoding::Native(shared.encoder())),
                (None, Some(_)) => Some(Encoding::Foreign(&foreign)),
                (None, None) => None,
            };
            run_stage(&job, stage, &parts, encoding.as_ref(), memory, threads, &tracker, watch)
        });
        stash.raise(py, result)
    })
}

/// The bytes of ids: of the native encoder's tokens, or what a callable returns.
struct Decoder {
    shared: Option<Arc<Shared>>,
    decode: Option<Py<PyAny>>,
    stash: Stash,
}

impl Decoder {
    fn append(&self, ids: &[u32], text: &mut Vec<u8>) -> Result<()> {
        match (&self.shared, &self.decode) {
            (Some(shared), _) => shared.decode(ids, text),
            (None, Some(decode)) => self.stash.keep(Python::attach(|py| {
                let bytes = decode.call1(py, (ids.to_vec(),))?;
                text.extend_from_slice(bytes.bind(py).extract::<&[u8]>()?);
                Ok(())
            })),
            (None, None) => Err(Error::Invalid("comparing documents needs a tokenizer".into())),
        }
    }
}

/// Writes some of the near-duplicates to a file, and adds what was kept to the cache, if there is one.
#[pyfunction]
#[pyo3(signature = (work, out, path, *, encoder, decode))]
pub fn finish_near(
    py: Python<'_>,
    work: PathBuf,
    out: PathBuf,
    path: PathBuf,
    encoder: Option<Py<Encoder>>,
    decode: Option<Py<PyAny>>,
) -> PyResult<()> {
    guarded(|| {
        let (stash, tracker) = (Stash::default(), Progress::default());
        let shared = encoder.map(|encoder| encoder.get().shared());
        let in_parts = shared.is_some();
        let decoder = Decoder { shared, decode, stash: stash.clone() };
        let result = py.detach(|| {
            let job = Job::load(&work, &out)?;
            // On a thread of its own, so that this one notices Ctrl-C.
            crew(1, &tracker, &mut watcher(&stash, None), |_| {
                let decode = |ids: &[u32], text: &mut Vec<u8>| decoder.append(ids, text);
                let decoding = Decoding { decode: &decode, in_parts };
                write_report(&job, &path, &decoding, &tracker)?;
                commit_near_cache(&job, &decoding, &tracker)
            })
        });
        stash.raise(py, result).map(|_| ())
    })
}

/// What the finished assembly made, as JSON: `{"shards": [...]}`, with packing also its statistics; or the `tokens` of
/// the one npy file.
#[pyfunction]
pub fn assembled_shards(py: Python<'_>, work: PathBuf, out: PathBuf) -> PyResult<String> {
    guarded(|| {
        let made = py.detach(|| assembled(&Job::load(&work, &out)?));
        made.map(|made| made.to_string()).map_err(|error| raise(py, error))
    })
}

/// Adds the hashes of a finished run to its cache, for later runs.
#[pyfunction]
pub fn commit_dedup_cache(py: Python<'_>, work: PathBuf, out: PathBuf) -> PyResult<u64> {
    guarded(|| {
        let kept = py.detach(|| commit_cache(&Job::load(&work, &out)?, &Progress::default()));
        kept.map_err(|error| raise(py, error))
    })
}

/// XXH64 of a file from `start` on, and how many bytes were read.
#[pyfunction]
#[pyo3(signature = (path, start = 0))]
pub fn xxh64_file(py: Python<'_>, path: PathBuf, start: u64) -> PyResult<(u64, u64)> {
    guarded(|| {
        use std::io::{Seek, SeekFrom};
        let summed = py.detach(|| {
            let failed = |error| Error::io(&path, error);
            let mut file = own_files::open(&path).map_err(failed)?;
            file.seek(SeekFrom::Start(start)).map_err(failed)?;
            let (mut sum, mut bytes, mut buffer) = (Xxh64::new(0), 0, vec![0; 256 << 10]);
            loop {
                match file.read(&mut buffer).map_err(failed)? {
                    0 => return Ok((sum.digest(), bytes)),
                    read => {
                        sum.update(&buffer[..read]);
                        bytes += read as u64;
                    }
                }
            }
        });
        summed.map_err(|error| raise(py, error))
    })
}
