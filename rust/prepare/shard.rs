//! Writes one shard: its ids, where its documents end, and a checksum of each.

use super::layout::SHARDS;
use super::{Job, Split};
use crate::atomic::{NewFile, commit_note, sync_folder};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use xxhash_rust::xxh64::Xxh64;

/// A shard's entry in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    pub file: String,
    pub index: String,
    pub tokens: u64,
    pub documents: u64,
    pub bytes: u64,
    pub xxh64: String,
    pub index_xxh64: String,
}

pub struct ShardWriter {
    record: ShardRecord,
    ids: ChecksummedFile,
    ends: ChecksummedFile,
    width: u64,
    folder: PathBuf,
    note: PathBuf,
}

struct ChecksummedFile {
    file: NewFile,
    sum: Xxh64,
    bytes: u64,
}

impl ChecksummedFile {
    fn create(job: &Job, name: &str) -> Result<ChecksummedFile> {
        Ok(ChecksummedFile { file: NewFile::create(&job.out.join(name))?, sum: Xxh64::new(0), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write(bytes)
    }

    fn commit(self) -> Result<String> {
        self.file.commit()?;
        Ok(format!("{:016x}", self.sum.digest()))
    }
}

/// The record of a shard of the layout that is complete.
pub fn finished_shard(job: &Job, index: u32) -> Option<ShardRecord> {
    let record: ShardRecord = crate::own_files::read_json(&job.note(SHARDS, index)).ok()?;
    let has = |name: &str, bytes: u64| {
        std::fs::metadata(job.out.join(name)).is_ok_and(|metadata| metadata.len() == bytes)
    };
    let complete = has(&record.file, record.bytes) && has(&record.index, record.documents * 8);
    complete.then_some(record)
}

impl ShardWriter {
    pub fn create(job: &Job, index: u32, split: Split, number: u64) -> Result<ShardWriter> {
        let name = |ending: &str| format!("{}/shard_{number:05}.{ending}", split.name());
        let (file, ends) = (name("bin"), name("idx"));
        Ok(ShardWriter {
            ids: ChecksummedFile::create(job, &file)?,
            ends: ChecksummedFile::create(job, &ends)?,
            record: ShardRecord { file, index: ends, ..ShardRecord::default() },
            width: job.plan.width() as u64,
            folder: job.out.join(split.name()),
            note: job.note(SHARDS, index),
        })
    }

    pub fn tokens(&self) -> u64 {
        self.ids.bytes / self.width
    }

    /// `ids` as bytes, little-endian.
    pub fn push(&mut self, ids: &[u8]) -> Result<()> {
        self.ids.write(ids)
    }

    /// A document ends before the id with this number.
    pub fn end_document_at(&mut self, end: u64) -> Result<()> {
        self.record.documents += 1;
        self.ends.write(&end.to_le_bytes())
    }

    /// Gives the shard's files their names, then writes the note that it is complete.
    pub fn commit(mut self) -> Result<()> {
        self.record.tokens = self.tokens();
        self.record.bytes = self.ids.bytes;
        self.record.xxh64 = self.ids.commit()?;
        self.record.index_xxh64 = self.ends.commit()?;
        sync_folder(&self.folder)?;
        commit_note(&self.note, &serde_json::to_vec(&self.record).expect("plain data"))
    }
}
