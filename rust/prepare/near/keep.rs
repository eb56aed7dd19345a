//! Adds the documents that a run kept to its cache, for later runs.

use super::bits::DroppedBits;
use super::texts::{Decoding, Texts};
use super::{bands_path, documents, settings};
use crate::crew::Progress;
use crate::dedup::grid::GridFile;
use crate::error::{Error, Result};
use crate::near::band_records::{self, key_range};
use crate::near::cache::CacheWriter;
use crate::near::{Buffer, Source};
use crate::prepare::Job;

const READ_BLOCK: usize = 64 << 10;
/// For the keys that are sorted at a time.
const MEMORY: usize = 8 << 20;

pub fn commit_near_cache(job: &Job, decoding: &Decoding<'_>, progress: &Progress) -> Result<()> {
    let (Some(folder), near) = (&job.plan.cache, settings(job)?) else { return Ok(()) };
    let mut bits = DroppedBits::new(&documents(job)?);
    if bits.total() > u64::from(u32::MAX) {
        return Err(Error::Invalid(
            "one run adds at most 4,294,967,295 documents to a dedup cache: prepare the input in several runs".into(),
        ));
    }
    for task in 0..job.plan.tasks {
        bits.load(job, task)?;
    }
    let mut writer = CacheWriter::create(folder, &job.plan.id, &near, &job.plan.cache_fingerprint)?;
    let mut buffer = Buffer::new(MEMORY);
    for partition in 0..near.partitions {
        let mut keys = Kept { job, partition: partition as usize, bits: &bits, progress };
        let count = keys.count()?;
        writer.add_keys(&mut keys, key_range(partition, near.partitions), count, &mut buffer)?;
    }
    drop(buffer);
    let mut texts = Texts::new(job, decoding);
    for task in 0..job.plan.tasks {
        for index in 0..bits.documents(task) as u32 {
            if bits.has(task, index) {
                continue;
            }
            progress.check()?;
            let set = texts.set(task, index)?;
            if !set.is_empty() {
                writer.add_set(bits.number(task, index).expect("of this task") as u32, &set)?;
            }
        }
    }
    writer.commit()
}

/// The keys of a partition that belong to documents that are kept.
struct Kept<'a> {
    job: &'a Job,
    partition: usize,
    bits: &'a DroppedBits,
    progress: &'a Progress,
}

impl Kept<'_> {
    fn count(&self) -> Result<u64> {
        let mut count = 0;
        for task in 0..self.job.plan.tasks {
            let file = GridFile::open(&bands_path(self.job, task), band_records::MAGIC)?;
            for row in 0..file.rows() {
                count += file.cell(row, self.partition, band_records::RECORD)?.records();
            }
        }
        Ok(count)
    }
}

impl Source for Kept<'_> {
    fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let mut block = vec![0; READ_BLOCK];
        for task in 0..self.job.plan.tasks {
            self.progress.check()?;
            let file = GridFile::open(&bands_path(self.job, task), band_records::MAGIC)?;
            band_records::for_each(&file, self.partition, &mut block, |key, index| {
                let number = self.bits.number(task, index).ok_or_else(|| file.damaged())?;
                if self.bits.has(task, index) { Ok(()) } else { each(key, number) }
            })?;
        }
        Ok(())
    }
}
