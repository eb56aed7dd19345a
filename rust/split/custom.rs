//! Any other regex, on fancy-regex: about 20 MB per second, compared to more than 1 GB for the named patterns.
//!
//! A regex may need more backtracking than fancy-regex allows. Then it is unknown where the piece would have ended, so
//! up to 4 KB become a piece, and the failure is counted for the caller to report. Advancing one character at a time
//! would not be more correct, and would reach the backtracking limit at each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fancy_regex::Regex;

use super::floor;

const FAILED_PIECE: usize = 4096;

#[derive(Clone, Debug)]
pub struct Custom {
    regex: Regex,
    failures: Arc<AtomicU64>,
}

impl Custom {
    pub(super) fn new(regex: &str) -> Result<Custom, String> {
        let regex = Regex::new(regex).map_err(|error| error.to_string())?;
        Ok(Custom { regex, failures: Arc::default() })
    }

    pub(super) fn regex(&self) -> &str {
        self.regex.as_str()
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Splits `text[from..]`; the text before `from` is for lookbehind.
    pub(super) fn tile<F: FnMut(usize, usize)>(
        &self,
        text: &str,
        from: usize,
        cap: usize,
        mut emit: F,
    ) -> u64 {
        let mut cut_off = 0;
        let mut start = from;
        while start < text.len() {
            let limit = floor(text, start.saturating_add(cap));
            let (gap_end, end) = self.next(&text[..limit], start);
            if gap_end > start {
                emit(start, gap_end);
            }
            // A match after a gap has seen less than `cap` bytes from its own start: unless that was all the text, it
            // is searched for again from there.
            if gap_end > start && limit < text.len() {
                cut_off += u64::from(gap_end == limit);
                start = gap_end;
                continue;
            }
            if end > gap_end {
                cut_off += u64::from(end == limit && self.continues(text, start, end));
                emit(gap_end, end);
            }
            start = end;
        }
        cut_off
    }

    /// The next cut in `window[start..]`: where the text without a match ends, and where the match after it ends (the
    /// same place if there is none). At least one of them is after `start`.
    fn next(&self, window: &str, start: usize) -> (usize, usize) {
        let mut from = start;
        loop {
            match self.regex.find_from_pos(window, from) {
                Ok(Some(found)) if found.end() > start => return (found.start(), found.end()),
                Ok(Some(_)) => {
                    // An empty match at `start` cuts nothing: continue at the next character.
                    let width = window[start..].chars().next().map_or(1, char::len_utf8);
                    from = start + width;
                    if from >= window.len() {
                        return (window.len(), window.len());
                    }
                }
                Ok(None) => return (window.len(), window.len()),
                Err(_) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    let end = floor(window, start.saturating_add(FAILED_PIECE));
                    return (end, end);
                }
            }
        }
    }

    fn continues(&self, text: &str, start: usize, end: usize) -> bool {
        let farther = floor(text, end + 16);
        self.next(&text[..farther], start).1 > end
    }
}
