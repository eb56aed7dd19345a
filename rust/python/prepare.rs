//! The stages of `prepare`, as Python calls them.

use super::encode::Encoder;
use super::read::next_file;
use super::{Stash, guarded, raise, watcher};
use crate::atomic::create_folder;
use crate::crew::Progress;
use crate::dedup::{Unit, partitions};
use crate::encode::Batch;
use crate::error::{Error, Result};
use crate::own_files;
use crate::prepare::assemble::{assemble, assemble_npy};
use crate::prepare::pack::assemble_packed;
use crate::prepare::{BufferSizes, Encoding, Job, Plan, Stage, commit_cache, run_stage};
use crate::source::Documents;
use crate::tasks::{PlanOptions, plan};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh64::Xxh64;

/// Divides the inputs, each (path, format, compression, size or -1, modification time), into tasks listed in a folder.
/// Returns the number of tasks and of files, the bytes on disk and a fingerprint.
#[pyfunction]
#[pyo3(signature = (files, folder, *, documents, separator, task_bytes))]
pub fn plan_tasks(
    py: Python<'_>,
    files: Py<PyAny>,
    folder: PathBuf,
    documents: &str,
    separator: Option<String>,
    task_bytes: Option<u64>,
) -> PyResult<(u32, u64, u64, String)> {
    guarded(|| {
        let stash = Stash::default();
        let documents =
            Documents::named(documents, separator.as_deref()).map_err(|error| raise(py, error))?;
        let options = PlanOptions { documents, target_bytes: task_bytes };
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

/// The least memory of one worker under a plan, given as JSON, and what all workers share in addition; `merges` says
/// whether the encoder merges (BPE).
#[pyfunction]
pub fn least_room(py: Python<'_>, plan: &str, merges: bool) -> PyResult<(usize, usize)> {
    guarded(|| {
        let plan: Plan = serde_json::from_str(plan)
            .map_err(|error| raise(py, Error::Invalid(format!("cannot read the plan ({error})"))))?;
        Ok((BufferSizes::least_memory(&plan), BufferSizes::shared_memory(&plan, merges)))
    })
}

/// Runs the parts of a stage (`scan`, `settle`, `write`) that are not done yet, or only `part`. Writing needs an
/// encoder: the native one, or a callable from a list of texts to (ids as uint32, ends as uint64).
#[pyfunction]
#[pyo3(signature = (work, out, stage, *, encoder, encode, memory, threads, total, progress, part = None))]
#[allow(clippy::too_many_arguments)]
pub fn run_prepare_stage(
    py: Python<'_>,
    work: PathBuf,
    out: PathBuf,
    stage: &str,
    encoder: Option<Py<Encoder>>,
    encode: Option<Py<PyAny>>,
    memory: usize,
    threads: usize,
    total: u64,
    progress: Option<Py<PyAny>>,
    part: Option<u32>,
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
        let stage = Stage::named(stage)
            .ok_or_else(|| raise(py, Error::Invalid(format!("unknown stage {stage:?}"))))?;
        let result = py.detach(|| {
            let job = Job::load(&work, &out)?;
            let encoding = match (&shared, &encode) {
                (Some(shared), _) => Some(Encoding::Native(shared.encoder())),
                (None, Some(_)) => Some(Encoding::Foreign(&foreign)),
                (None, None) => None,
            };
            let mut watch = watcher(&stash, progress.as_ref());
            run_stage(&job, stage, part, encoding.as_ref(), memory, threads, &tracker, &mut watch)
        });
        stash.raise(py, result)
    })
}

/// Assembles the shards and returns their records as JSON: `{"shards": [...]}`, and with `pack` the statistics of
/// packing. With `npy` all ids go to that one file instead, and `tokens` is their number.
#[pyfunction]
#[pyo3(signature = (work, out, *, pack, npy, threads, progress))]
pub fn assemble_shards(
    py: Python<'_>,
    work: PathBuf,
    out: PathBuf,
    pack: Option<u64>,
    npy: Option<PathBuf>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    guarded(|| {
        let stash = Stash::default();
        let tracker = Progress::default();
        let result = py.detach(|| {
            let job = Job::load(&work, &out)?;
            create_folder(&work.join("shards"))?;
            let mut watch = watcher(&stash, progress.as_ref());
            // On a thread of its own, so that this one notices Ctrl-C.
            let mut alone = |work: &(dyn Fn() -> Result<serde_json::Value> + Sync)| {
                crate::crew::crew(1, &tracker, &mut watch, |_| work()).map(|mut one| one.remove(0))
            };
            match (npy, pack) {
                (Some(path), _) => {
                    alone(&|| Ok(serde_json::json!({"tokens": assemble_npy(&job, &path, &tracker)?})))
                }
                (None, Some(length)) => {
                    alone(&|| Ok(serde_json::json!(assemble_packed(&job, length, &tracker)?)))
                }
                (None, None) => {
                    Ok(serde_json::json!({"shards": assemble(&job, threads, &tracker, &mut watch)?}))
                }
            }
        });
        Ok(stash.raise(py, result)?.to_string())
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
