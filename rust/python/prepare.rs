//! The stages of `prepare`, as Python calls them.

use super::encode::Encoder;
use super::{Stash, raise, watcher};
use crate::crew::Progress;
use crate::dedup::{Unit, partitions};
use crate::encode::Batch;
use crate::error::{Error, Result};
use crate::prepare::assemble::{assemble, assemble_npy};
use crate::prepare::pack::assemble_packed;
use crate::prepare::{Encoding, Job, Part, Plan, Room, Stage, commit_cache, run_stage};
use crate::source::{Compression, Documents, FileSpec, Format};
use crate::tasks::{Listed, PlanOptions, plan};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh64::Xxh64;

type Listing = (PathBuf, String, String, i64, i64);

/// Lists the inputs, (path, format, compression, size or -1, time of change), as tasks in a folder.
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
    let documents = match (documents, separator) {
        ("line", _) => Documents::Line,
        ("separator", Some(separator)) => Documents::Separator(separator),
        _ => Documents::File,
    };
    let stash = Stash::default();
    let options = PlanOptions { documents, target_bytes: task_bytes };
    let next = || {
        let next = stash.keep(Python::attach(|py| match files.bind(py).try_iter()?.next() {
            Some(item) => item?.extract::<Listing>().map(Some),
            None => Ok(None),
        }))?;
        next.map(listed).transpose()
    };
    let planned = stash.raise(py, py.detach(|| plan(next, &options, &folder)))?;
    let fingerprint = planned.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((planned.tasks, planned.files, planned.total_bytes, fingerprint))
}

fn listed((path, format, compression, size, modified): Listing) -> Result<Listed> {
    let unknown = |what: &str| Error::Invalid(format!("{} has an unknown {what}", path.display()));
    let spec = FileSpec {
        format: Format::named(&format).ok_or_else(|| unknown("format"))?,
        compression: Compression::named(&compression).ok_or_else(|| unknown("compression"))?,
        size: u64::try_from(size).ok(),
        path,
        range: None,
    };
    Ok(Listed { spec, modified })
}

/// Partitions of the hashes of an input of this size.
#[pyfunction]
pub fn dedup_partitions(total_bytes: u64, unit: &str) -> u32 {
    partitions(total_bytes, if unit == "line" { Unit::Line } else { Unit::Document })
}

/// The least memory of one worker under a plan, given as JSON, and what all of them need together besides; `merges` says
/// whether the encoder does.
#[pyfunction]
pub fn least_room(py: Python<'_>, plan: &str, merges: bool) -> PyResult<(usize, usize)> {
    let plan: Plan = serde_json::from_str(plan)
        .map_err(|error| raise(py, Error::Invalid(format!("the plan cannot be read ({error})"))))?;
    Ok((Room::least(&plan), Room::shared(&plan, merges)))
}

/// Runs what is not yet done of a stage (`scan`, `settle`, `write`), or one part of it. Writing takes an
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
    let stash = Stash::default();
    let told = Progress::default();
    told.total.store(total, Relaxed);
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
        .ok_or_else(|| raise(py, Error::Invalid(format!("there is no stage {stage:?}"))))?;
    let result = py.detach(|| {
        let job = Job::load(&work, &out)?;
        let encoding = match (&shared, &encode) {
            (Some(shared), _) => Some(Encoding::Native(shared.encoder())),
            (None, Some(_)) => Some(Encoding::Foreign(&foreign)),
            (None, None) => None,
        };
        match part {
            Some(part) => {
                let room = Room::new(&job.plan, memory, 1);
                Part::new(&job, stage, encoding.as_ref(), room)?.run(part, threads, &told)
            }
            None => run_stage(
                &job,
                stage,
                encoding.as_ref(),
                memory,
                threads,
                &told,
                &mut watcher(&stash, progress.as_ref()),
            ),
        }
    });
    stash.raise(py, result)
}

/// Puts the shards together and returns their records as JSON: `{"shards": [...]}`, and with `pack` what packing
/// did. With `npy` all ids become that one file instead, and `tokens` is their number.
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
    let stash = Stash::default();
    let told = Progress::default();
    let result = py.detach(|| {
        let job = Job::load(&work, &out)?;
        let notes = work.join("shards");
        std::fs::create_dir_all(&notes).map_err(|error| Error::write(&notes, error))?;
        let mut watch = watcher(&stash, progress.as_ref());
        // On a thread of its own, so that this one hears Ctrl-C.
        let mut alone = |work: &(dyn Fn() -> Result<serde_json::Value> + Sync)| {
            crate::crew::crew(1, &told, &mut watch, |_| work()).map(|mut one| one.remove(0))
        };
        match (npy, pack) {
            (Some(path), _) => {
                alone(&|| Ok(serde_json::json!({"tokens": assemble_npy(&job, &path, &told)?})))
            }
            (None, Some(length)) => alone(&|| Ok(serde_json::json!(assemble_packed(&job, length, &told)?))),
            (None, None) => Ok(serde_json::json!({"shards": assemble(&job, threads, &told, &mut watch)?})),
        }
    });
    Ok(stash.raise(py, result)?.to_string())
}

/// Keeps the hashes of a finished run for later ones, in its cache.
#[pyfunction]
pub fn commit_dedup_cache(py: Python<'_>, work: PathBuf, out: PathBuf) -> PyResult<u64> {
    let kept = py.detach(|| commit_cache(&Job::load(&work, &out)?, &Progress::default()));
    kept.map_err(|error| raise(py, error))
}

/// XXH64 of a file from `start` on, and how many bytes that was.
#[pyfunction]
#[pyo3(signature = (path, start = 0))]
pub fn xxh64_file(py: Python<'_>, path: PathBuf, start: u64) -> PyResult<(u64, u64)> {
    use std::io::{Seek, SeekFrom};
    let summed = py.detach(|| {
        let failed = |error| Error::io(&path, error);
        let mut file = File::open(&path).map_err(failed)?;
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
}
