//! One bit for every document of a run: whether it is dropped.

use super::decided;
use crate::error::Result;
use crate::prepare::Job;

pub struct DroppedBits {
    /// Where the documents of each task start, and the number of all.
    starts: Vec<u64>,
    bits: Vec<u64>,
}

impl DroppedBits {
    /// The bytes that it takes for so many documents.
    pub fn memory(documents: u64) -> usize {
        (documents / 8) as usize + 64
    }

    /// `documents` has the number of documents of each task.
    pub fn new(documents: &[u64]) -> DroppedBits {
        let mut starts = vec![0];
        for count in documents {
            starts.push(starts[starts.len() - 1] + count);
        }
        let total = starts[starts.len() - 1];
        DroppedBits { starts, bits: vec![0; total.div_ceil(64) as usize] }
    }

    /// For the documents of one task only.
    pub fn of_task(task: u32, documents: u64) -> DroppedBits {
        let mut starts = vec![0; task as usize + 1];
        starts.push(documents);
        DroppedBits { starts, bits: vec![0; documents.div_ceil(64) as usize] }
    }

    /// Adds the dropped documents of a task that is done.
    pub fn load(&mut self, job: &Job, task: u32) -> Result<()> {
        decided::for_each(job, task, |drops| {
            drops.iter().for_each(|drop| self.set(task, drop.index));
            Ok(())
        })
    }

    /// The number of a document among those of all tasks; `None` if there is no such document.
    pub fn number(&self, task: u32, index: u32) -> Option<u64> {
        let number = self.starts.get(task as usize)? + u64::from(index);
        (number < *self.starts.get(task as usize + 1)?).then_some(number)
    }

    pub fn set(&mut self, task: u32, index: u32) {
        if let Some(number) = self.number(task, index) {
            self.bits[(number / 64) as usize] |= 1 << (number % 64);
        }
    }

    pub fn has(&self, task: u32, index: u32) -> bool {
        self.number(task, index)
            .is_some_and(|number| self.bits[(number / 64) as usize] >> (number % 64) & 1 != 0)
    }

    pub fn documents(&self, task: u32) -> u64 {
        self.starts[task as usize + 1] - self.starts[task as usize]
    }

    pub fn total(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }
}
