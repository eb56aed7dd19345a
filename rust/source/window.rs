//! The bytes of one file that have been read but not consumed.

use super::block::SPARE;
use crate::error::Result;

/// A stream of bytes with errors that name the file. 0 is the end.
pub(super) trait Bytes: Send {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize>;
}

/// A buffer over a stream. It never has more than requested from `fill`, so the caller bounds it.
pub(super) struct Window {
    source: Box<dyn Bytes>,
    /// All of its length may be overwritten; `start..end` is what was read. It is never shortened, so that a buffer is
    /// zeroed only once and not for every read.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    /// Where in the stream `start` is.
    offset: u64,
}

impl Window {
    /// `offset` is the position of `source`. `buffer` is memory to be reused.
    pub fn new(source: Box<dyn Bytes>, buffer: Vec<u8>, offset: u64) -> Window {
        Window { source, buffer, start: 0, end: 0, ended: false, offset }
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Reads until at least `want` bytes are there or the stream has ended.
    pub fn fill(&mut self, want: usize) -> Result<()> {
        if self.ended || self.end - self.start >= want {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < want {
            self.buffer.reserve_exact(want + SPARE - self.buffer.len());
            self.buffer.resize(want, 0);
        }
        while self.end < want {
            let read = self.source.read(&mut self.buffer[self.end..want])?;
            self.ended = read == 0;
            if self.ended {
                break;
            }
            self.end += read;
        }
        Ok(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the stream ends after `bytes()`.
    pub fn ended(&self) -> bool {
        self.ended
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Discards the buffer and ends the stream.
    pub fn end(&mut self) {
        self.consume(self.end - self.start);
        self.ended = true;
    }

    /// Moves the first `bytes` bytes to `into`. If that is most of the buffer, the two are swapped and only the rest is
    /// copied.
    pub fn move_to(&mut self, bytes: usize, into: &mut Vec<u8>) {
        let rest = self.end - self.start - bytes;
        if self.start == 0 && bytes > rest && bytes > self.buffer.len() / 2 {
            if into.len() < rest {
                into.resize(rest, 0);
            }
            into[..rest].copy_from_slice(&self.buffer[bytes..self.end]);
            std::mem::swap(&mut self.buffer, into);
            into.truncate(bytes);
            self.end = rest;
            self.offset += bytes as u64;
        } else {
            into.clear();
            into.extend_from_slice(&self.bytes()[..bytes]);
            self.consume(bytes);
        }
    }
}
