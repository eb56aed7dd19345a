//! The output of the tasks before it is assembled into shards: for each split, the ids and where documents end.

use super::Job;
use crate::atomic::NewFile;
use crate::error::{Error, Result};
use crate::own_files;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Val,
}

impl Split {
    pub const ALL: [Split; 2] = [Split::Train, Split::Val];

    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Val => "val",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub tokens: u64,
    pub documents: u64,
}

/// The document that would be moved to the other split first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Candidate {
    pub hash: u64,
    /// Its first piece, and how many there are: a document divided for having too many tokens moves as a whole.
    pub document: u64,
    pub pieces: u64,
}

/// The part of a finished task's note that the assembly needs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TaskTokens {
    pub train: Written,
    pub val: Written,
    /// In the train split, the document with the lowest hash.
    pub candidate: Option<Candidate>,
    /// In the validation split, the one with the highest.
    #[serde(default)]
    pub last_val: Option<Candidate>,
}

impl TaskTokens {
    pub fn of(&self, split: Split) -> Written {
        match split {
            Split::Train => self.train,
            Split::Val => self.val,
        }
    }
}

pub fn path(job: &Job, task: u32, split: Split, ending: &str) -> PathBuf {
    job.work.join("tokens").join(format!("{task:06}.{}.{ending}", split.name()))
}

/// Writes the ids of one split of one task.
pub struct TokenWriter {
    ids: NewFile,
    ends: NewFile,
    written: Written,
    width: usize,
}

impl TokenWriter {
    pub fn create(job: &Job, task: u32, split: Split) -> Result<Self> {
        Ok(TokenWriter {
            ids: NewFile::create(&path(job, task, split, "ids"))?,
            ends: NewFile::create(&path(job, task, split, "ends"))?,
            written: Written::default(),
            width: job.plan.width(),
        })
    }

    /// `ids` as bytes, little-endian.
    pub fn push(&mut self, ids: &[u8]) -> Result<()> {
        self.written.tokens += (ids.len() / self.width) as u64;
        self.ids.write(ids)
    }

    pub fn end_document(&mut self) -> Result<()> {
        self.written.documents += 1;
        self.ends.write(&self.written.tokens.to_le_bytes())
    }

    pub fn documents(&self) -> u64 {
        self.written.documents
    }

    pub fn commit(self) -> Result<Written> {
        self.ids.commit()?;
        self.ends.commit()?;
        Ok(self.written)
    }
}

/// Reads where documents end in a task's split, from document `first` on, a block at a time.
pub struct Ends {
    path: PathBuf,
    file: File,
    offset: u64,
    buffer: Vec<u8>,
    at: usize,
}

const BLOCK: usize = 64 << 10;

impl Ends {
    pub fn open(job: &Job, task: u32, split: Split, first: u64) -> Result<Ends> {
        let path = path(job, task, split, "ends");
        let file = own_files::open(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Ends { path, file, offset: first * 8, buffer: Vec::new(), at: 0 })
    }

    pub fn next_end(&mut self) -> Result<Option<u64>> {
        if self.at == self.buffer.len() {
            self.buffer.resize(BLOCK, 0);
            let read = self
                .file
                .read_at(&mut self.buffer, self.offset)
                .map_err(|error| Error::io(&self.path, error))?;
            self.buffer.truncate(read / 8 * 8);
            self.offset += self.buffer.len() as u64;
            self.at = 0;
            if self.buffer.is_empty() {
                return Ok(None);
            }
        }
        let end = u64::from_le_bytes(self.buffer[self.at..self.at + 8].try_into().expect("eight bytes"));
        self.at += 8;
        Ok(Some(end))
    }
}

/// The ids of a task's split.
pub struct Ids {
    path: PathBuf,
    file: File,
    width: u64,
}

impl Ids {
    pub fn open(job: &Job, task: u32, split: Split) -> Result<Ids> {
        let path = path(job, task, split, "ids");
        let file = own_files::open(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Ids { path, file, width: job.plan.width() as u64 })
    }

    /// Calls `each` with the bytes of `tokens`, a block at a time.
    pub fn copy(
        &self,
        tokens: std::ops::Range<u64>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = [0u8; BLOCK];
        let (mut at, end) = (tokens.start * self.width, tokens.end * self.width);
        while at < end {
            let want = BLOCK.min((end - at) as usize);
            self.file.read_exact_at(&mut buffer[..want], at).map_err(|error| Error::io(&self.path, error))?;
            each(&buffer[..want])?;
            at += want as u64;
        }
        Ok(())
    }
}

/// The notes of all tasks, which must be finished; without near-duplicates, if these are dropped.
pub fn load_tasks(job: &Job) -> Result<Vec<TaskTokens>> {
    let stage = if job.plan.near.is_some() { super::near::NEAR } else { "tokens" };
    (0..job.plan.tasks).map(|task| own_files::read_json(&job.note(stage, task))).collect()
}
