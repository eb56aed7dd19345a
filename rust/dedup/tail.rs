//! Bytes that are collected while a file is written, for its end.

use crate::atomic::temporary_name;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const IN_MEMORY: usize = if cfg!(test) { 64 } else { 64 << 10 };

/// In memory up to a limit, and beyond it in a file that has no name, so that a kill leaves nothing of it.
pub struct Tail {
    beside: PathBuf,
    last: Vec<u8>,
    file: Option<File>,
    written: u64,
}

impl Tail {
    /// `beside` is the file that is written.
    pub fn new(beside: &Path) -> Tail {
        Tail { beside: beside.to_owned(), last: Vec::new(), file: None, written: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.last.len() + bytes.len() > IN_MEMORY {
            self.spill().map_err(|error| Error::write(&self.beside, error))?;
        }
        self.last.extend_from_slice(bytes);
        Ok(())
    }

    fn spill(&mut self) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let path = temporary_name(&self.beside);
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
                std::fs::remove_file(&path)?;
                none.insert(file)
            }
        };
        file.write_all(&self.last)?;
        self.written += self.last.len() as u64;
        self.last.clear();
        Ok(())
    }

    /// Calls `each` with everything, in order, a block at a time.
    pub fn read(self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(file) = &self.file {
            let mut block = vec![0; IN_MEMORY.min(self.written as usize)];
            for at in (0..self.written).step_by(IN_MEMORY) {
                let block = &mut block[..(self.written - at).min(IN_MEMORY as u64) as usize];
                file.read_exact_at(block, at).map_err(|error| Error::io(&self.beside, error))?;
                each(block)?;
            }
        }
        each(&self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_comes_back_and_no_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        for count in [0, 1, 8, 9, 1000] {
            let mut tail = Tail::new(&folder.path().join("a"));
            let words: Vec<u8> = (0..count).flat_map(u64::to_le_bytes).collect();
            words.chunks(8).for_each(|word| tail.push(word).unwrap());
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            let mut read = Vec::new();
            tail.read(|bytes| {
                assert!(bytes.len() <= IN_MEMORY);
                read.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            assert_eq!(read, words);
        }
    }
}
