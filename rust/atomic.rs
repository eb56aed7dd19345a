//! Files that are there whole or not at all: temporary name, sync, rename.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The ending of what a killed run may leave behind; the next run of the same work writes over it.
const TEMPORARY: &str = ".ramlet-tmp";
const BUFFER: usize = 64 << 10;

/// A file on its way. Dropped without `commit`, it was never there.
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
}

impl NewFile {
    pub fn create(path: &Path) -> Result<NewFile> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}{TEMPORARY}"));
        let file = File::create(&temporary).map_err(|error| Error::write(&temporary, error))?;
        Ok(NewFile { path: path.to_owned(), temporary, file: Some(BufWriter::with_capacity(BUFFER, file)) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("not committed yet");
        file.write_all(bytes).map_err(|error| Error::write(&self.path, error))
    }

    /// Gives the file its name, once all of it is on the disk. The folder is the caller's to sync.
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

/// A small file, whole, with its folder synced: what it says is true from then on.
pub fn commit_note(path: &Path, text: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(text)?;
    file.commit()?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes renames in a folder outlast a loss of power.
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::write(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
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
