//! Repairs an invalid `:authority` in place, so that h2 accepts calls that gRPC servers accept.
//!
//! gRPC servers never check the authority. gRPC's C core, and so every Python client, sends a unix
//! socket's path there, or all addresses of its target; other clients send a list in brackets. h2
//! refuses such calls. Wherever a header block spells the authority out, the filter therefore
//! replaces the characters that no authority may contain, and after the first of them also the
//! delimiters `:`, `[`, `]` and `@`.

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const FLAG_PADDED: u8 = 0x08;
const FLAG_PRIORITY: u8 = 0x20;
const FRAME_HEADER_BYTES: usize = 9;

/// Index of `:authority` in HPACK's static table.
const AUTHORITY: u8 = 1;
const AUTHORITY_NAME: &[u8] = b":authority";

#[derive(Default)]
pub struct AuthorityFilter {
    header: [u8; FRAME_HEADER_BYTES],
    header_read: usize,
    /// Payload bytes left in the frame, and how many of the next ones belong to no header block.
    payload_left: usize,
    skipped_left: usize,
    block: Block,
    /// Header fields that started since this count was last taken.
    pub fields: usize,
}

impl AuthorityFilter {
    /// Filters the connection's next bytes, which follow the HTTP/2 preface.
    pub fn pass(&mut self, mut data: &mut [u8]) {
        while !data.is_empty() {
            if self.header_read < FRAME_HEADER_BYTES {
                self.header[self.header_read] = data[0];
                self.header_read += 1;
                data = &mut data[1..];
                if self.header_read == FRAME_HEADER_BYTES {
                    self.begin_frame();
                }
                continue;
            }
            let (here, rest) = data.split_at_mut(self.payload_left.min(data.len()));
            self.pass_payload(here);
            self.payload_left -= here.len();
            if self.payload_left == 0 {
                self.header_read = 0;
            }
            data = rest;
        }
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.payload_left = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.skipped_left = match kind {
            HEADERS => {
                self.block = Block::default();
                usize::from(flags & FLAG_PADDED != 0) + 5 * usize::from(flags & FLAG_PRIORITY != 0)
            }
            CONTINUATION => 0,
            _ => self.payload_left,
        };
        if self.payload_left == 0 {
            self.header_read = 0;
        }
    }

    fn pass_payload(&mut self, payload: &mut [u8]) {
        let skipped = self.skipped_left.min(payload.len());
        self.skipped_left -= skipped;
        for byte in &mut payload[skipped..] {
            self.fields += usize::from(matches!(self.block, Block::Field));
            *byte = self.block.pass(*byte);
        }
    }
}

/// The parser's state, which gives the next byte of a header block its meaning.
#[derive(Clone, Copy, Default)]
enum Block {
    #[default]
    Field,
    /// The rest of an integer that the filter ignores; a literal's value may follow.
    Number {
        then_value: bool,
    },
    /// The length of a name or a value.
    Length {
        text: Text,
    },
    LengthRest {
        text: Text,
        length: usize,
        shift: u32,
    },
    Text {
        text: Text,
        left: usize,
    },
}

#[derive(Clone, Copy)]
enum Text {
    /// A name whose first `matched` bytes equal those of `:authority`.
    Name {
        matched: usize,
    },
    Value,
    Authority,
    /// An authority in which a character was replaced; valid delimiters can only precede the first
    /// replaced one.
    MendedAuthority,
    /// A Huffman-coded authority, which cannot be repaired in place and which C core does not send.
    CodedAuthority,
}

impl Block {
    fn pass(&mut self, byte: u8) -> u8 {
        let mut passed = byte;
        *self = match *self {
            Block::Field => Block::of_field(byte),
            Block::Number { .. } if byte & 0x80 != 0 => *self,
            Block::Number { then_value: true } => Block::Length { text: Text::Value },
            Block::Number { then_value: false } => Block::Field,
            Block::Length { text } => {
                let text = match text {
                    Text::Authority if byte & 0x80 != 0 => Text::CodedAuthority,
                    text => text,
                };
                match byte & 0x7F {
                    0x7F => Block::LengthRest { text, length: 0x7F, shift: 0 },
                    length => Block::of_text(text, length.into()),
                }
            }
            Block::LengthRest { text, length, shift } => {
                // h2 refuses longer numbers.
                let length = length + (usize::from(byte & 0x7F) << shift.min(28));
                match byte & 0x80 {
                    0 => Block::of_text(text, length),
                    _ => Block::LengthRest { text, length, shift: shift + 7 },
                }
            }
            Block::Text { text: Text::Name { matched }, left } => {
                let goes_on = AUTHORITY_NAME.get(matched) == Some(&byte);
                let matched = if goes_on { matched + 1 } else { usize::MAX };
                Block::of_text(Text::Name { matched }, left - 1)
            }
            Block::Text { text, left } => {
                let text = match (text, byte) {
                    (Text::Authority | Text::MendedAuthority, b'%' | b'/' | b',' | b'#' | b'?')
                    | (Text::MendedAuthority, b':' | b'[' | b']' | b'@') => {
                        passed = b'-';
                        Text::MendedAuthority
                    }
                    (text, _) => text,
                };
                Block::of_text(text, left - 1)
            }
        };
        passed
    }

    fn of_field(byte: u8) -> Block {
        let (prefix, is_literal) = match byte {
            0x80.. => (0x7F, false),
            0x40..0x80 => (0x3F, true),
            0x20..0x40 => (0x1F, false),
            _ => (0x0F, true),
        };
        match (byte & prefix, is_literal) {
            (number, then_value) if number == prefix => Block::Number { then_value },
            (_, false) => Block::Field,
            (0, true) => Block::Length { text: Text::Name { matched: 0 } },
            (AUTHORITY, true) => Block::Length { text: Text::Authority },
            (_, true) => Block::Length { text: Text::Value },
        }
    }

    fn of_text(text: Text, left: usize) -> Block {
        match (text, left) {
            (Text::Name { matched }, 0) if matched == AUTHORITY_NAME.len() => {
                Block::Length { text: Text::Authority }
            }
            (Text::Name { .. }, 0) => Block::Length { text: Text::Value },
            (_, 0) => Block::Field,
            (text, left) => Block::Text { text, left },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn only_the_authority_is_mended_however_the_bytes_are_cut() {
        let block = [
            &b"\x83\x41\x07a:1%2:b\x04\x03/%a\x40\x02%x\x03y%z\x3f\xe1\x1f\x7f\x01\x02%%"[..],
            b"\x40\x0a:authority\x04/%%a\x40\x0b:authorityx\x02%%",
        ]
        .concat();
        let mended = [
            &b"\x83\x41\x07a:1-2-b\x04\x03/%a\x40\x02%x\x03y%z\x3f\xe1\x1f\x7f\x01\x02%%"[..],
            b"\x40\x0a:authority\x04---a\x40\x0b:authorityx\x02%%",
        ]
        .concat();
        let mut bytes = frame(0, 0, b"\x41\x01%");
        let mut expected = bytes.clone();
        for (flags, before) in [(0, &b""[..]), (0x28, b"\0abcde")] {
            bytes.extend(frame(HEADERS, flags, &[before, &block[..5]].concat()));
            bytes.extend(frame(CONTINUATION, 0, &block[5..]));
            expected.extend(frame(HEADERS, flags, &[before, &mended[..5]].concat()));
            expected.extend(frame(CONTINUATION, 0, &mended[5..]));
        }
        for step in 1..bytes.len() {
            let mut passed = bytes.clone();
            let mut filter = AuthorityFilter::default();
            passed.chunks_mut(step).for_each(|chunk| filter.pass(chunk));
            assert_eq!(passed, expected);
        }
    }
}
