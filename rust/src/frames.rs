//! Follows the HTTP/2 frames of a connection by their headers alone.
//!
//! h2 answers pings and handles resets without reporting them; this module counts a client's.

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;

const FLAG_ACK: u8 = 0x01;
pub const HEADER_BYTES: usize = 9;

/// Memory that a waiting call costs besides its headers.
const OVERHEAD_BYTES: usize = 256;

/// Memory that a header costs besides its bytes, even if a single byte refers to all of it.
const FIELD_BYTES: usize = 128;

/// Size of new calls at which reading stops until they are accepted, which is usually soon.
const CALLS_BYTES_MAX: usize = 256 * 1024;

struct Frame {
    kind: u8,
    flags: u8,
    length: usize,
    stream: u32,
}

impl Frame {
    fn new(header: &[u8; HEADER_BYTES]) -> Frame {
        let [high, middle, low, kind, flags, a, b, c, d] = *header;
        Frame {
            kind,
            flags,
            length: u32::from_be_bytes([0, high, middle, low]) as usize,
            stream: u32::from_be_bytes([a & 0x7F, b, c, d]),
        }
    }
}

/// Finds the frames in one direction of a connection.
#[derive(Default)]
struct Walker {
    header: [u8; HEADER_BYTES],
    header_read: usize,
    payload_left: usize,
}

impl Walker {
    fn pass(&mut self, mut data: &[u8], mut seen: impl FnMut(&Frame)) {
        loop {
            let skipped = self.payload_left.min(data.len());
            self.payload_left -= skipped;
            data = &data[skipped..];
            if data.is_empty() {
                return;
            }
            let taken = (HEADER_BYTES - self.header_read).min(data.len());
            self.header[self.header_read..self.header_read + taken].copy_from_slice(&data[..taken]);
            self.header_read += taken;
            data = &data[taken..];
            if self.header_read == HEADER_BYTES {
                let frame = Frame::new(&self.header);
                (self.header_read, self.payload_left) = (0, frame.length);
                seen(&frame);
            }
        }
    }

    fn is_between_frames(&self) -> bool {
        self.header_read == 0 && self.payload_left == 0
    }
}

/// Counts of a client's frames, which the connection's driver takes and resets.
#[derive(Default)]
pub struct Traffic {
    reading: Walker,
    writing: Walker,
    /// The client's first frame has started.
    pub greeted: bool,
    /// Pings since the driver last took the count, or since a ping that followed a response.
    pub pings: u32,
    /// A ping followed a response, which clears the client's earlier pings.
    pub forgiven: bool,
    /// HEADERS or DATA were written since the last ping.
    answered: bool,
    /// Streams that the client reset.
    pub resets: Vec<u32>,
    /// Size of new calls with their overhead, until the calls are accepted.
    pub calls_bytes: usize,
    /// New calls are not accepted for now.
    pub held: bool,
    /// Reading stopped because calls have to be accepted first.
    pub throttled: bool,
    /// DATA frames that were written: stream and length.
    pub data: Vec<(u32, usize)>,
    /// GOAWAY frames that were written.
    pub goaways: u8,
}

impl Traffic {
    pub fn read(&mut self, data: &[u8]) {
        self.greeted |= !data.is_empty();
        self.reading.pass(data, |frame| match frame.kind {
            PING if frame.flags & FLAG_ACK == 0 => {
                self.pings += 1;
                if std::mem::take(&mut self.answered) {
                    (self.forgiven, self.pings) = (true, 0);
                }
            }
            RST_STREAM => self.resets.push(frame.stream),
            HEADERS | CONTINUATION => self.calls_bytes += frame.length + OVERHEAD_BYTES,
            _ => {}
        });
    }

    /// Counts header fields that arrived.
    pub fn read_fields(&mut self, fields: usize) {
        self.calls_bytes += fields * FIELD_BYTES;
    }

    /// Whether calls have to be accepted before more is read.
    pub fn is_throttled(&mut self) -> bool {
        // Held calls are not accepted, and the frames that release them have to be read.
        self.throttled = !self.held && self.calls_bytes > CALLS_BYTES_MAX;
        self.throttled
    }

    pub fn wrote(&mut self, data: &[u8]) {
        self.writing.pass(data, |frame| match frame.kind {
            DATA => {
                self.answered = true;
                self.data.push((frame.stream, frame.length));
            }
            HEADERS => self.answered = true,
            GO_AWAY => self.goaways = self.goaways.saturating_add(1),
            _ => {}
        });
    }

    /// Builds a GOAWAY frame; None while another frame is half written.
    pub fn go_away(&self, last_stream: u32, reason: u32, text: &str) -> Option<Vec<u8>> {
        self.writing.is_between_frames().then(|| {
            let length = (8 + text.len()) as u32;
            let mut frame = length.to_be_bytes()[1..].to_vec();
            frame.extend([GO_AWAY, 0, 0, 0, 0, 0]);
            frame.extend(last_stream.to_be_bytes());
            frame.extend(reason.to_be_bytes());
            frame.extend(text.as_bytes());
            frame
        })
    }
}

/// Facts about a server's frames that its client needs and h2 does not report.
#[derive(Default)]
pub struct ServerFrames {
    reading: Walker,
    settings: bool,
    /// The server has asked for no more calls.
    pub going_away: bool,
}

impl ServerFrames {
    pub fn read(&mut self, data: &[u8]) {
        self.reading.pass(data, |frame| match frame.kind {
            SETTINGS => self.settings = true,
            GO_AWAY => self.going_away = true,
            _ => {}
        });
    }

    /// Whether the server's settings have arrived.
    pub fn has_greeted(&self) -> bool {
        self.settings && self.reading.is_between_frames()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn the_same_is_seen_however_the_bytes_are_cut() {
        let read = [
            frame(PING, 0, 0, &[6; 8]),
            frame(PING, FLAG_ACK, 0, &[6; 8]),
            frame(HEADERS, 0, 1, b"headers"),
            frame(DATA, 0, 1, &[]),
            frame(RST_STREAM, 0, 1, &[0; 4]),
            frame(RST_STREAM, 0, 3, &[0; 4]),
            frame(PING, 0, 0, &[6; 8]),
        ]
        .concat();
        let written = [
            frame(HEADERS, 0, 1, b"h"),
            frame(DATA, 0, 1, b"12345"),
            frame(GO_AWAY, 0, 0, &[0; 8]),
        ]
        .concat();
        for step in 1..read.len() {
            let mut traffic = Traffic::default();
            read.chunks(step).for_each(|chunk| traffic.read(chunk));
            assert_eq!((traffic.pings, traffic.forgiven), (2, false));
            assert_eq!(traffic.resets, [1, 3]);
            assert_eq!(traffic.calls_bytes, 7 + OVERHEAD_BYTES);
            written.chunks(step).for_each(|chunk| traffic.wrote(chunk));
            assert_eq!((&traffic.data[..], traffic.goaways), (&[(1, 5)][..], 1));
            assert!(traffic.go_away(1, 11, "text").is_some());
            traffic.wrote(&written[..3]);
            assert!(traffic.go_away(1, 11, "text").is_none());
            traffic.read(&frame(PING, 0, 0, &[6; 8]));
            assert_eq!((traffic.pings, traffic.forgiven), (0, true));
        }
    }
}
