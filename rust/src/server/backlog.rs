//! Tracks responses that were handed to h2 without checking the client's window.
//!
//! h2 nearly always writes them in the same pass, and then nothing about them is kept.

use rustc_hash::FxHashMap;

/// Bytes that one pass may hand to h2 without checking the window.
const HURRY_BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub struct Backlog {
    /// Responses of this pass: stream and length.
    recent: Vec<(u32, usize)>,
    recent_bytes: usize,
    /// Bytes of earlier passes' responses that h2 still holds, by stream.
    inside: FxHashMap<u32, usize>,
    inside_bytes: usize,
}

impl Backlog {
    /// Whether a response may be handed to h2 without checking the window.
    pub fn has_room(&self) -> bool {
        self.inside.is_empty() && self.recent_bytes < HURRY_BYTES_MAX
    }

    pub fn add(&mut self, stream: u32, length: usize) {
        self.recent.push((stream, length));
        self.recent_bytes += length;
    }

    /// Bytes of these responses that h2 had not written when the last pass ended.
    pub fn bytes(&self) -> usize {
        self.inside_bytes
    }

    /// Ends a pass; `written` lists the DATA frames that left in it, and is cleared.
    pub fn settle(&mut self, written: &mut Vec<(u32, usize)>) {
        if !self.inside.is_empty() || *written != self.recent {
            for (stream, length) in &self.recent {
                *self.inside.entry(*stream).or_default() += length;
            }
            self.inside_bytes += self.recent_bytes;
            for (stream, length) in written.iter() {
                self.take(*stream, *length);
            }
        }
        written.clear();
        self.recent.clear();
        self.recent_bytes = 0;
    }

    /// Frees memory that an idle connection does not need.
    pub fn rest(&mut self) {
        self.recent.shrink_to_fit();
    }

    /// Forgets streams that the client reset; h2 has dropped their data.
    pub fn forget(&mut self, streams: &[u32]) {
        if !self.inside.is_empty() {
            streams.iter().for_each(|stream| self.take(*stream, usize::MAX));
        }
    }

    fn take(&mut self, stream: u32, length: usize) {
        if let Some(left) = self.inside.get_mut(&stream) {
            let taken = length.min(*left);
            *left -= taken;
            self.inside_bytes -= taken;
            if *left == 0 {
                self.inside.remove(&stream);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_written_is_remembered() {
        let mut backlog = Backlog::default();
        backlog.add(1, 10);
        backlog.add(3, 20);
        backlog.settle(&mut vec![(3, 20), (1, 10)]);
        assert!(backlog.has_room() && backlog.bytes() == 0);
        // Another stream's frame of the same length is not this answer's.
        backlog.add(1, 10);
        backlog.settle(&mut vec![(99, 10)]);
        assert!(!backlog.has_room() && backlog.bytes() == 10);
        backlog.settle(&mut vec![(1, 10)]);
        for stream in [5, 7, 9] {
            backlog.add(stream, 10);
        }
        backlog.settle(&mut vec![(5, 4), (99, 1000), (7, 10)]);
        assert!(!backlog.has_room() && backlog.bytes() == 16);
        backlog.forget(&[9, 99]);
        assert_eq!(backlog.bytes(), 6);
        backlog.settle(&mut vec![(5, 6)]);
        assert!(backlog.has_room() && backlog.bytes() == 0);
        backlog.add(11, HURRY_BYTES_MAX);
        assert!(!backlog.has_room());
    }
}
