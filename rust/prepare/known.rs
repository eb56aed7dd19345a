//! What the first reading found of each document, so that the second need not clean it again.
//!
//! Most documents are kept as they are, or without the white space at their ends: a part of what was read. For each
//! document two small numbers are written: 1 + the bytes before that part and the bytes behind it, or 0 alone where
//! the text has to be cleaned again.

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

pub struct KnownWriter {
    file: NewFile,
    numbers: Vec<u8>,
}

impl KnownWriter {
    pub fn create(job: &Job, task: u32) -> Result<KnownWriter> {
        Ok(KnownWriter { file: NewFile::create(&path(job, task))?, numbers: Vec::new() })
    }

    /// `kept` is what cleaning made of `read`, where it was kept.
    pub fn push(&mut self, read: &str, kept: Option<&str>) -> Result<()> {
        self.numbers.clear();
        match kept.and_then(|kept| part(read, kept)) {
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

/// Where `kept` lies in `read`, if it was borrowed from it.
fn part(read: &str, kept: &str) -> Option<Range<usize>> {
    let start = (kept.as_ptr() as usize).checked_sub(read.as_ptr() as usize)?;
    (start + kept.len() <= read.len()).then_some(start..start + kept.len())
}

pub struct Known {
    file: BufReader<File>,
    path: PathBuf,
}

impl Known {
    /// `None` where there was no first reading.
    pub fn open(job: &Job, task: u32) -> Result<Option<Known>> {
        let path = path(job, task);
        match own_files::open(&path) {
            Ok(file) => Ok(Some(Known { file: BufReader::with_capacity(64 << 10, file), path })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, error)),
        }
    }

    /// What cleaning makes of the next document, where that is a part of it.
    pub fn next_of<'a>(&mut self, read: &'a str) -> Result<Option<&'a str>> {
        let Some(start) = self.number()?.checked_sub(1) else { return Ok(None) };
        let behind = self.number()?;
        let end = (read.len() as u64).checked_sub(behind);
        // Where the input has changed there may be no such part: cleaning it then is as good as anything.
        Ok(end.and_then(|end| read.get(start as usize..end as usize)))
    }

    fn number(&mut self) -> Result<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let bytes = self.file.fill_buf().map_err(|error| Error::io(&self.path, error))?;
            // The end comes too early only where the input has grown.
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
    fn parts_are_found_by_where_they_lie() {
        let read = String::from("\n\nsome text  \n");
        assert_eq!(part(&read, &read), Some(0..14));
        assert_eq!(part(&read, read.trim()), Some(2..11));
        assert_eq!(part(&read, "some text"), None);
    }
}
