//! The first reading: a hash for every unit that may be a duplicate, and the characters that occur.

use super::known::KnownWriter;
use super::read::{Pace, TaskFiles};
use super::{Job, Room, Stage};
use crate::atomic::commit_note;
use crate::clean::{Cleaner, Taken, Verdict};
use crate::crew::Progress;
use crate::dedup::{self, Drops, RecordWriter, SettlePlan, Unit, drop_file, fresh_file, open_caches};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// A sum over the documents of a task: the same in both readings, or the files changed between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content(u64);

impl Content {
    pub fn add(&mut self, hash: u128) {
        self.0 = self.0.rotate_left(1).wrapping_add((hash >> 64) as u64);
    }
}

/// What `scan` notes, of what is asked for later.
#[derive(Deserialize)]
struct Scanned {
    units: u64,
    content: Content,
}

/// Blank lines hold paragraphs apart: they are never duplicates.
pub fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

pub fn records_path(job: &Job, task: u32) -> PathBuf {
    job.work.join("scan").join(format!("{task:06}.hashes"))
}

pub fn scan(job: &Job, index: u32, room: &Room, progress: &Progress) -> Result<()> {
    let plan = &job.plan;
    let path = records_path(job, index);
    let temporary = path.with_extension("hashes.ramlet-tmp");
    let buffer = room.hash_bytes.min(super::LARGEST_RECORDS);
    let mut records = match plan.unit {
        Some(_) => Some(RecordWriter::create(&temporary, plan.partitions, buffer)?),
        None => None,
    };
    let mut characters = plan.characters.then(CharacterSet::new);
    let mut cleaner = Cleaner::new(plan.clean.clone());
    let files = TaskFiles::open(job, index, room, progress)?;
    let mut reader = files.read(progress);
    let mut pace = Pace::default();
    let mut content = Content::default();
    let mut known = KnownWriter::create(job, index)?;
    while let Some(document) = reader.next()? {
        let bytes = document.text.len();
        let verdict = cleaner.clean(document.text, &mut Taken::default());
        known.push(document.text, if let Verdict::Keep(text) = verdict { Some(text) } else { None })?;
        if let Verdict::Keep(text) = verdict {
            let hash = xxh3_128(text.as_bytes());
            content.add(hash);
            match (plan.unit, &mut records) {
                (Some(Unit::Document), Some(records)) => records.push(hash)?,
                (Some(Unit::Line), Some(records)) => {
                    for line in text.split('\n').filter(|line| !is_blank(line)) {
                        records.push(xxh3_128(line.as_bytes()))?;
                    }
                }
                _ => {}
            }
            if let Some(characters) = &mut characters {
                text.chars().for_each(|character| characters.add(character));
            }
        }
        if pace.is_due(bytes) {
            reader.tell()?;
        }
    }
    reader.tell()?;
    known.commit()?;
    let mut units = 0;
    if let Some(records) = records {
        units = records.finish()?.units;
        std::fs::rename(&temporary, &path).map_err(|error| Error::write(&path, error))?;
    }
    let characters: Option<String> = characters.map(|characters| characters.iter().collect());
    let note =
        json!({"units": units, "content": content, "characters": characters, "input": files.counters()});
    commit_note(&job.note("scan", index), note.to_string().as_bytes())
}

/// How the partitions are settled.
pub fn settle_plan(job: &Job, room: &Room) -> Result<SettlePlan> {
    let caches = match (&job.plan.cache, job.plan.unit) {
        (Some(folder), Some(unit)) if folder.is_dir() => {
            open_caches(folder, &job.plan.id, unit, cache_fingerprint(job)?)?
        }
        _ => Vec::new(),
    };
    Ok(SettlePlan {
        partitions: job.plan.partitions,
        records: (0..job.plan.tasks).map(|task| records_path(job, task)).collect(),
        caches,
        keep_fresh: job.plan.cache.is_some(),
        out: drops_folder(job),
        memory: room.hash_bytes.min(super::LARGEST_SET),
    })
}

/// The units of a task that came before, and the content that they were found in.
pub fn drops(job: &Job, task: u32) -> Result<(Drops, Content)> {
    let path = job.note("scan", task);
    let text = crate::own_files::read(&path).map_err(|error| Error::io(&path, error))?;
    let Scanned { units, content } = serde_json::from_slice(&text)
        .map_err(|error| Error::Invalid(format!("{} cannot be read ({error})", path.display())))?;
    Ok((Drops::load(task, units, partition_files(job, drop_file))?, content))
}

/// Keeps the hashes that are new for later runs, in the plan's cache.
pub fn commit_cache(job: &Job, progress: &Progress) -> Result<u64> {
    let (Some(folder), Some(unit)) = (&job.plan.cache, job.plan.unit) else { return Ok(0) };
    let files = partition_files(job, fresh_file);
    dedup::commit_cache(folder, &job.plan.id, unit, cache_fingerprint(job)?, &files, progress)
}

/// One file of each partition.
fn partition_files(job: &Job, name: fn(&Path, u32) -> PathBuf) -> Vec<PathBuf> {
    let folder = drops_folder(job);
    (0..job.plan.partitions).map(|partition| name(&folder, partition)).collect()
}

fn drops_folder(job: &Job) -> PathBuf {
    job.work.join(Stage::Settle.folder())
}

fn cache_fingerprint(job: &Job) -> Result<[u8; 16]> {
    let text = &job.plan.cache_fingerprint;
    let number = u128::from_str_radix(text.get(..32).unwrap_or(text), 16)
        .map_err(|_| Error::Invalid(format!("the plan's fingerprint {text:?} is no hexadecimal number")))?;
    Ok(number.to_be_bytes())
}

/// Every character that occurred.
struct CharacterSet(Vec<u64>);

impl CharacterSet {
    fn new() -> Self {
        CharacterSet(vec![0; (char::MAX as usize + 1).div_ceil(64)])
    }

    #[inline]
    fn add(&mut self, character: char) {
        self.0[character as usize / 64] |= 1 << (character as usize % 64);
    }

    fn iter(&self) -> impl Iterator<Item = char> {
        let has = |code: &u32| self.0[*code as usize / 64] >> (code % 64) & 1 == 1;
        (0..=char::MAX as u32).filter(has).filter_map(char::from_u32)
    }
}
