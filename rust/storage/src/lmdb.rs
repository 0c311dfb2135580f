//! LMDB's data format 1: the constants of its pages, and a file of it that is mapped for reading.

/// Bytes before the entries of a page.
pub const HEADER_BYTES: usize = 16;
/// Bytes before the key of an entry.
pub const NODE_BYTES: usize = 8;

/// Kinds of pages.
pub const BRANCH: u16 = 0x01;
pub const LEAF: u16 = 0x02;
pub const OVERFLOW: u16 = 0x04;

/// The flag of an entry whose value lies on overflow pages.
pub const BIG_DATA: u16 = 0x01;
/// The flag of an entry whose value is the record of a database.
pub const SUB_DATABASE: u16 = 0x02;

/// The length of a database's record, and the offset of the root in it.
pub const DATABASE_BYTES: usize = 48;
pub const ROOT: usize = 40;
pub const NO_PAGE: u64 = u64::MAX;
/// LMDB's cursors go no deeper.
pub const DEPTH_MAX: usize = 32;

/// A file that is mapped for reading.
pub struct MappedFile {
    address: *mut libc::c_void,
    length: usize,
}

// SAFETY: nothing changes through the pointer.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps an open file; `reads_all` reads all of it at once, instead of each page at its first use.
    pub fn new(descriptor: i32, reads_all: bool) -> std::io::Result<Self> {
        // SAFETY: a zeroed `stat` is a valid one, and `fstat` fills it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a local of the right type.
        if unsafe { libc::fstat(descriptor, &raw mut status) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let length = status.st_size as usize;
        let flags = libc::MAP_SHARED | if reads_all { libc::MAP_POPULATE } else { 0 };
        // SAFETY: a new mapping, which nothing else refers to.
        let address = unsafe {
            let (start, kind) = (std::ptr::null_mut(), libc::PROT_READ);
            libc::mmap(start, length.max(1), kind, flags, descriptor, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { address, length })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that length and lives as long as `self`. Nothing truncates the
        // file. The commit's pages do not change meanwhile: no process writes to the file, or a
        // read transaction holds them.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.address, self.length.max(1)) };
    }
}
