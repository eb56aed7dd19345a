//! Detects whether a file has changed: compared before and after it is read, so that a mixture of two versions is never
//! used.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The state of a regular file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Nanoseconds since 1970, like `st_mtime_ns` in Python.
    modified: i64,
    /// When the content or the metadata changed last; no program can set it back.
    changed: i64,
    /// Metadata whose change updates the time above but not the content: links, permissions, owner, group.
    about: (u64, u32, u32, u32),
}

impl Stamp {
    /// `None` if it is not a regular file: a pipe or a device has no permanent content.
    pub fn of(file: &File) -> io::Result<Option<Stamp>> {
        Ok(Stamp::from(&file.metadata()?))
    }

    /// Of the file that is now at a path.
    pub fn at(path: &Path) -> io::Result<Option<Stamp>> {
        Ok(Stamp::from(&std::fs::metadata(path)?))
    }

    fn from(found: &Metadata) -> Option<Stamp> {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        found.is_file().then(|| Stamp {
            device: found.dev(),
            inode: found.ino(),
            size: found.len(),
            modified: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed: nanoseconds(found.ctime(), found.ctime_nsec()),
            about: (found.nlink(), found.mode(), found.uid(), found.gid()),
        })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn modified(&self) -> i64 {
        self.modified
    }

    /// What happened to the file until `now`, to complete "FILE ..."; `None` if it has not changed.
    pub fn difference(&self, now: &Stamp) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            return Some("was replaced by another file while it was being read".into());
        }
        if self.size != now.size {
            return Some(resized(self.size, now.size));
        }
        let touched = self.changed != now.changed && self.about == now.about;
        (self.modified != now.modified || touched).then(rewritten)
    }
}

pub fn resized(before: u64, now: u64) -> String {
    let change = if now < before { "shrunk" } else { "grown" };
    format!("has {change} from {before} to {now} bytes since the run began")
}

pub fn rewritten() -> String {
    "was written to since the run began".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn content_counts_and_names_and_permissions_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "some text").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let before = Stamp::of(&file).unwrap().unwrap();
        let difference = || before.difference(&Stamp::at(&path).unwrap().unwrap());
        assert_eq!(difference(), None);
        fs::hard_link(&path, folder.path().join("link")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(difference(), None);
        file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
        assert!(difference().unwrap().starts_with("was written to"));
        fs::write(&path, "some longer text").unwrap();
        assert!(difference().unwrap().starts_with("has grown from 9 to 16 bytes"));
        fs::write(folder.path().join("new"), "some text").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(difference().unwrap().starts_with("was replaced"));
    }

    #[test]
    fn a_time_that_was_set_back_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "some text").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let before = Stamp::of(&file).unwrap().unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(30)); // file times have a coarse resolution
        fs::write(&path, "sOme text").unwrap();
        file.set_modified(time).unwrap();
        assert!(before.difference(&Stamp::of(&file).unwrap().unwrap()).is_some());
    }

    #[test]
    fn devices_have_none() {
        assert_eq!(Stamp::at(Path::new("/dev/null")).unwrap(), None);
    }
}
