//! The numbers and the layouts of the protocol document; all integers are big-endian.
//!
//! *Invariant:* nothing here decides anything; every other file of this folder gets its constants
//! and byte layouts from here.

use super::durations::Begun;

/// First bytes of a server's greeting, `NBDMAGIC`.
pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Starts each option, `IHAVEOPT`; also the second half of the greeting.
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
/// Starts each reply to an option.
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags, the same bits in both directions.
pub(crate) mod greeting_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 2;
}

/// Options that a client may send.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of replies to options.
pub(crate) mod answer {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR + 2;
    pub(crate) const ERR_INVALID: u32 = ERROR + 3;
    pub(crate) const ERR_PLATFORM: u32 = ERROR + 4;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR + 9;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Items of INFO and GO.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Flags of a volume that the server sends for transmission.
pub(crate) mod transmission_flag {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
    pub(crate) const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Starts a request with a 32-bit length.
pub(crate) const REQUEST: u32 = 0x2560_9513;
/// Starts a request with a 64-bit length.
pub(crate) const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
/// Starts a simple reply.
pub(crate) const SIMPLE_REPLY: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub(crate) const STRUCTURED_REPLY: u32 = 0x668e_33ef;
/// Starts a chunk of an extended reply.
pub(crate) const EXTENDED_REPLY: u32 = 0x6e8a_278c;

/// Flags of a request.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Marks the last chunk of a reply.
pub(crate) const CHUNK_DONE: u16 = 1;

/// Kinds of reply chunks.
pub(crate) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
    pub(crate) const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The one metadata context: which ranges are holes, and which read as zeroes.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
/// The number under which [`BASE_ALLOCATION`] is reported.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation`: nothing is allocated there.
pub(crate) const STATE_HOLE: u32 = 1;
/// `base:allocation`: reads as zeroes.
pub(crate) const STATE_ZERO: u32 = 2;

/// How requests and replies look after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialect {
    /// 32-bit requests; each reply is one error number, then the data of a read.
    Simple,
    /// 32-bit requests; reads and statuses are answered in chunks.
    Structured,
    /// 64-bit requests; everything is answered in chunks.
    Extended,
}

impl Dialect {
    /// Bytes of a request without its payload.
    pub(crate) fn request_bytes(self) -> usize {
        if self == Dialect::Extended { 32 } else { 28 }
    }
}

/// A request as it came, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    /// Bytes of the range; of the payload, when the request has one.
    pub(crate) length: u64,
    /// When it was taken up; not in the bytes.
    pub(crate) begun: Option<Begun>,
}

/// The bytes where a request should start are no request: the stream can't be understood any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotARequest;

impl Request {
    /// The request at the start of `bytes`; `None` when more bytes are needed to tell.
    pub(crate) fn parse(bytes: &[u8], dialect: Dialect) -> Result<Option<Request>, NotARequest> {
        let magic = if dialect == Dialect::Extended { EXTENDED_REQUEST } else { REQUEST };
        let known = bytes.len().min(4);
        if bytes[..known] != magic.to_be_bytes()[..known] {
            return Err(NotARequest);
        }
        let mut fields = Fields(bytes);
        let mut request = || {
            fields.u32()?;
            Some(Request {
                flags: fields.u16()?,
                command: fields.u16()?,
                cookie: fields.u64()?,
                offset: fields.u64()?,
                length: if dialect == Dialect::Extended {
                    fields.u64()?
                } else {
                    u64::from(fields.u32()?)
                },
                begun: None,
            })
        };
        Ok(request())
    }
}

/// Takes big-endian integers and byte strings from the front of a slice; `None` when it is too
/// short.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A byte string after its 32-bit length.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).ok()?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends big-endian integers to a buffer.
pub(crate) trait Put {
    fn put16(&mut self, value: u16);
    fn put32(&mut self, value: u32);
    fn put64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn put16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_told_from_garbage_by_its_first_byte() {
        assert_eq!(Request::parse(&[], Dialect::Simple), Ok(None));
        assert_eq!(Request::parse(&[0x25], Dialect::Simple), Ok(None));
        assert_eq!(Request::parse(&[0x26], Dialect::Simple), Err(NotARequest));
        assert_eq!(Request::parse(&[0x25], Dialect::Extended), Err(NotARequest));
    }

    #[test]
    fn requests_of_both_sizes_are_parsed() {
        let mut bytes = Vec::new();
        bytes.put32(REQUEST);
        bytes.put16(1);
        bytes.put16(2);
        bytes.put64(3);
        bytes.put64(4);
        bytes.put32(5);
        let expected =
            Request { flags: 1, command: 2, cookie: 3, offset: 4, length: 5, begun: None };
        assert_eq!(Request::parse(&bytes, Dialect::Structured), Ok(Some(expected)));
        assert_eq!(Request::parse(&bytes[..27], Dialect::Structured), Ok(None));
        bytes[..4].copy_from_slice(&EXTENDED_REQUEST.to_be_bytes());
        bytes.put32(6);
        assert_eq!(
            Request::parse(&bytes, Dialect::Extended),
            Ok(Some(Request { length: (5 << 32) + 6, ..expected }))
        );
    }
}
