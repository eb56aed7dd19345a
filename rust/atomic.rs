//! Files that exist complete or not at all: temporary name, sync, rename.
//!
//! Temporary names are unique, so two processes that make the same file, on one machine or on two, never mix their
//! output: the last one wins, and both made the same. A temporary file is locked while it is written, so that whoever
//! finds one that is not (`remove_left` in atomic_files.py) knows that its process has ended.

use crate::error::{Error, Result};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The ending of what a killed run may leave.
pub const TEMPORARY: &str = ".ramlet-tmp";
const BUFFER: usize = 64 << 10;

/// A file being written. Dropped without `commit`, it leaves nothing.
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
}

impl NewFile {
    pub fn create(path: &Path) -> Result<NewFile> {
        let temporary = temporary_name(path);
        let file = create_locked(&temporary)?;
        Ok(NewFile { path: path.to_owned(), temporary, file: Some(BufWriter::with_capacity(BUFFER, file)) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("not committed yet");
        file.write_all(bytes).map_err(|error| Error::write(&self.path, error))
    }

    /// Syncs the file and gives it its name. Syncing the folder is left to the caller.
    pub fn commit(mut self) -> Result<()> {
        let file = self.file.take().expect("committed once");
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|error| Error::write(&self.path, error))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A name next to `path` that no other process uses.
pub fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Its keys are random, and differ with every call.
    let unique = RandomState::new().hash_one(std::process::id()) as u32;
    path.with_file_name(format!(".{name}.{unique:08x}{TEMPORARY}"))
}

/// Creates a file that is locked as long as it is open, where the file system has locks.
pub fn create_locked(path: &Path) -> Result<File> {
    let failed = |error| Error::write(path, error);
    loop {
        let file = File::create(path).map_err(failed)?;
        let _ = file.try_lock();
        // Before it was locked, another process may have removed it as one that was left.
        let here = file.metadata().map_err(failed)?.ino();
        if std::fs::metadata(path).is_ok_and(|named| named.ino() == here) {
            return Ok(file);
        }
    }
}

/// Writes a small file and syncs its folder: when this returns, the file is durable.
pub fn commit_note(path: &Path, text: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(text)?;
    file.commit()?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Creates a folder and its parents, unless it is there already.
pub fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::write(folder, error))
}

/// Makes renames in a folder survive a power loss.
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::write(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_complete_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        commit_note(&path, b"whole").unwrap();
        commit_note(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
