//! Which part of each document the first reading kept, so that the second does not have to clean it again.
//!
//! Most documents are kept as they are, or without the white space at their ends: a range of what was read. For each
//! document two small numbers are written: 1 + the bytes before that range and the bytes after it, or only 0 if the
//! text has to be cleaned again.

use super::Job;
use crate::atomic::NewFile;
use crate::error::{Error, Result};
use crate::own_files;
use crate::varint;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;

fn path(job: &Job, task: u32) -> PathBuf {
    job.work.join("scan").join(format!("{task:06}.known"))
}

pub struct KeptRangesWriter {
    file: NewFile,
    numbers: Vec<u8>,
}

impl KeptRangesWriter {
    pub fn create(job: &Job, task: u32) -> Result<KeptRangesWriter> {
        Ok(KeptRangesWriter { file: NewFile::create(&path(job, task))?, numbers: Vec::new() })
    }

    /// `kept` is the cleaned text of `read`, if it was kept.
    pub fn push(&mut self, read: &str, kept: Option<&str>) -> Result<()> {
        self.numbers.clear();
        match kept.and_then(|kept| range_in(read, kept)) {
            Some(Range { start, end }) => {
                varint::put(&mut self.numbers, 1 + start as u64);
                varint::put(&mut self.numbers, (read.len() - end) as u64);
            }
            None => self.numbers.push(0),
        }
        self.file.write(&self.numbers)
    }

    pub fn commit(self) -> Result<()> {
        self.file.commit()
    }
}

/// The range of `kept` in `read`, if it was borrowed from it.
fn range_in(read: &str, kept: &str) -> Option<Range<usize>> {
    let start = (kept.as_ptr() as usize).checked_sub(read.as_ptr() as usize)?;
    (start + kept.len() <= read.len()).then_some(start..start + kept.len())
}

pub struct KeptRanges {
    file: BufReader<File>,
    path: PathBuf,
}

impl KeptRanges {
    /// `None` if there was no first reading.
    pub fn open(job: &Job, task: u32) -> Result<Option<KeptRanges>> {
        let path = path(job, task);
        match own_files::open(&path) {
            Ok(file) => Ok(Some(KeptRanges { file: BufReader::with_capacity(64 << 10, file), path })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, error)),
        }
    }

    /// The cleaned text of the next document, if it is a range of what was read.
    pub fn next_of<'a>(&mut self, read: &'a str) -> Result<Option<&'a str>> {
        let Some(start) = self.number()?.checked_sub(1) else { return Ok(None) };
        let after = self.number()?;
        let end = (read.len() as u64).checked_sub(after);
        // If the input has changed, the range may not exist: then the text is cleaned again, and the change noticed
        // later.
        Ok(end.and_then(|end| read.get(start as usize..end as usize)))
    }

    fn number(&mut self) -> Result<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let bytes = self.file.fill_buf().map_err(|error| Error::io(&self.path, error))?;
            // The file ends early only if the input has grown.
            let Some(&byte) = bytes.first() else { return Ok(0) };
            self.file.consume(1);
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 || shift > 56 {
                return Ok(value);
            }
            shift += 7;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_address() {
        let read = String::from("\n\nsome text  \n");
        assert_eq!(range_in(&read, &read), Some(0..14));
        assert_eq!(range_in(&read, read.trim()), Some(2..11));
        assert_eq!(range_in(&read, "some text"), None);
    }
}
