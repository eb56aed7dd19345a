//! A temporary file that is removed with its owner.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::window::Bytes;
use crate::atomic::{create_folder, temporary_name};
use crate::error::{Error, Result};

pub(super) struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    pub fn create(folder: &Path) -> Result<Scratch> {
        let path = temporary_name(&folder.join("source"));
        create_folder(folder)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|error| Error::write(&path, error))?;
        // On systems where an open file can be removed, it is removed now, so that it is gone even after a kill.
        #[cfg(unix)]
        fs::remove_file(&path).map_err(|error| Error::write(&path, error))?;
        Ok(Scratch { file, path })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::write(&self.path, error))
    }

    pub fn clear(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(|error| Error::write(&self.path, error))?;
        self.seek(0)
    }

    pub fn seek(&mut self, offset: u64) -> Result<()> {
        self.file.seek(SeekFrom::Start(offset)).map_err(|error| Error::io(&self.path, error))?;
        Ok(())
    }

    /// A second handle; it shares the file position with this one.
    pub fn handle(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| Error::io(&self.path, error))
    }
}

impl Bytes for Scratch {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.file.read(buffer).map_err(|error| Error::io(&self.path, error))
    }
}

#[cfg(not(unix))]
impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the file is in the temporary folder anyway.
        let _ = fs::remove_file(&self.path);
    }
}
