//! The handshake: the client's options one by one, until it has chosen a volume or leaves.
//!
//! *Invariant:* the server checks an option's length before it receives the option, and handles the
//! option only when all of it has arrived. Settings that a client negotiated for one volume are not
//! used for another. On a line that has to be encrypted nothing that came before counts behind it: who
//! can change plain bytes could have negotiated it, or said what the client seems to say.

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;

use onefold_core::{Error, Kind, Replaced, Volume};

use super::ending::Ending;
use super::inbox::{Inbox, Source};
use super::limits::Limits;
use super::line::Secrecy;
use super::reply::Outbox;
use super::rights::Offer;
use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, Dialect, Fields, GREETING, OPTION, OPTION_REPLY, Put,
    answer, greeting_flag, info, option, transmission_flag as offer,
};

/// The result of the handshake.
pub(crate) struct Agreed {
    pub(crate) volume: Arc<dyn Volume>,
    /// The name of the volume.
    pub(crate) name: String,
    /// True when the client may change the volume.
    pub(crate) writes: bool,
    pub(crate) dialect: Dialect,
    /// The client may ask for the status of ranges.
    pub(crate) allocation: bool,
}

/// Bytes of an option before its data.
const HEADER: usize = 16;
/// The longest volume name that any store has.
const VOLUME_NAME_BYTES: usize = 383;
/// The request size that clients should prefer; smaller requests cost the engine a read.
const PREFERRED_BYTES: u32 = 4096;
/// Unused bytes at the end of the reply to EXPORT_NAME.
const ZEROES: usize = 124;
/// Replies to one LIST are sent whenever so much has gathered.
const LIST_BYTES: usize = 4 << 10;
/// Lists of volumes in one handshake: each looks at all volumes. Clients need one or two.
const LISTS_MAX: u32 = 8;

struct Handshake<'a, R, W> {
    offer: Offer<'a>,
    limits: &'a Limits,
    inbox: &'a mut Inbox<R>,
    outbox: &'a Outbox<W>,
    replies: Vec<u8>,
    no_zeroes: bool,
    dialect: Dialect,
    /// The volume name for which `base:allocation` was negotiated.
    allocation_for: Option<Vec<u8>>,
    /// Lists of volumes that were made.
    lists: Cell<u32>,
    /// Another server has taken over: the client is to ask that one, instead of hearing an answer here.
    replaced: Cell<bool>,
}

/// Where an option leads.
enum Next {
    Option,
    Transmission(Agreed),
}

/// Runs the handshake. `established` is called with the reader and what was agreed once it
/// has succeeded, before the client hears of that; when it gives nothing, there is no place for the
/// client.
///
/// # Errors
/// How the connection ended, when it did.
pub(crate) fn handshake<R: Source, W: Write, T>(
    offer: Offer<'_>,
    limits: &Limits,
    inbox: &mut Inbox<R>,
    outbox: &Outbox<W>,
    established: impl FnOnce(&mut R, &Agreed) -> Option<T>,
) -> Result<(Agreed, T), Ending> {
    let mut greeting = Vec::new();
    greeting.put64(GREETING);
    greeting.put64(OPTION);
    greeting.put16(greeting_flag::FIXED_NEWSTYLE | greeting_flag::NO_ZEROES);
    outbox.hold().send([&greeting[..]].into_iter())?;

    inbox.need(4)?;
    let flags = Fields(inbox.unread()).u32().unwrap_or_default();
    inbox.consume(4);
    if flags & !u32::from(greeting_flag::FIXED_NEWSTYLE | greeting_flag::NO_ZEROES) != 0 {
        return Err(Ending::Protocol("the client's handshake flags are not known"));
    }
    let no_zeroes = flags & u32::from(greeting_flag::NO_ZEROES) != 0;
    let mut handshake = Handshake {
        offer,
        limits,
        inbox,
        outbox,
        replies: Vec::new(),
        no_zeroes,
        dialect: Dialect::Simple,
        allocation_for: None,
        lists: Cell::new(0),
        replaced: Cell::new(false),
    };
    for _ in 0..limits.options {
        if let Next::Transmission(agreed) = handshake.option()? {
            let Some(place) = established(handshake.inbox.reader(), &agreed) else {
                return Err(Ending::Closed);
            };
            handshake.send()?;
            return Ok((agreed, place));
        }
        handshake.send()?;
    }
    Err(Ending::Protocol("the client sent too many options"))
}

impl<R: Source, W: Write> Handshake<'_, R, W> {
    /// Takes one option and prepares its answer.
    fn option(&mut self) -> Result<Next, Ending> {
        self.inbox.need(8)?;
        if self.inbox.unread()[..8] != OPTION.to_be_bytes() {
            return Err(Ending::Protocol("no option where one should start"));
        }
        self.inbox.need(HEADER)?;
        let mut fields = Fields(&self.inbox.unread()[8..]);
        let (option, length) = (fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default());
        if length > self.limits.option_bytes {
            self.reply(option, answer::ERR_TOO_BIG, b"the option is too long");
            self.send()?;
            return Err(Ending::Protocol("the client sent an option that is too long"));
        }
        let end = HEADER + length as usize;
        self.inbox.need(end)?;
        // Copied, so that answering may borrow the rest; a handshake has a dozen of these.
        let data = self.inbox.unread()[HEADER..end].to_vec();
        self.inbox.consume(end);
        self.answer(option, &data)
    }

    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Next, Ending> {
        let owed = self.inbox.reader().secrecy() == Secrecy::Owed;
        match option {
            option::ABORT | option::STARTTLS => {}
            // The only refusal of this option is to close the connection.
            option::EXPORT_NAME if owed => {
                return Err(Ending::Protocol("the client asked for a volume before TLS"));
            }
            _ if owed => {
                self.reply(option, answer::ERR_TLS_REQD, b"this server needs TLS: STARTTLS first");
                return Ok(Next::Option);
            }
            _ => {}
        }
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(option, answer::ACK, &[]);
                // The client may have closed already; that is as good as reading the reply.
                let _ = self.send();
                return Err(Ending::Closed);
            }
            option::LIST => self.list(data)?,
            option::INFO | option::GO => return Ok(self.info(option, data)),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::EXTENDED_HEADERS => self.extended_headers(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            option::STARTTLS => self.start_tls(data)?,
            _ => self.reply(option, answer::ERR_UNSUP, b"the option is not known"),
        }
        Ok(Next::Option)
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Ending> {
        let (answer, text): (u32, &[u8]) = match self.inbox.reader().secrecy() {
            Secrecy::Plain => (answer::ERR_UNSUP, b"TLS is not offered"),
            Secrecy::Given => (answer::ERR_INVALID, b"TLS was started already"),
            Secrecy::Owed if !data.is_empty() => (answer::ERR_INVALID, b"STARTTLS takes no data"),
            Secrecy::Owed => (answer::ACK, b""),
        };
        self.reply(option::STARTTLS, answer, text);
        if answer != answer::ACK {
            return Ok(());
        }
        if !self.inbox.unread().is_empty() {
            return Err(Ending::Protocol("plain bytes came behind STARTTLS"));
        }
        self.send()?;
        self.offer.peer = self.inbox.reader().start_tls()?;
        (self.dialect, self.allocation_for) = (Dialect::Simple, None);
        self.lists.set(0);
        Ok(())
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Next, Ending> {
        // The only refusal of this option is to close the connection.
        let Ok((opened, (volume, writes))) = self.open(name) else {
            return Err(Ending::Protocol("the client asked for a volume that is not there"));
        };
        let agreed = self.agree(name, opened, volume, writes);
        self.replies.put64(agreed.volume.size());
        self.replies.put16(offers(&agreed, agreed.allocation));
        if !self.no_zeroes {
            self.replies.extend_from_slice(&[0; ZEROES]);
        }
        Ok(Next::Transmission(agreed))
    }

    fn list(&mut self, data: &[u8]) -> Result<(), Ending> {
        if !data.is_empty() {
            self.reply(option::LIST, answer::ERR_INVALID, b"LIST takes no data");
            return Ok(());
        }
        if !self.may_list() {
            return Err(Ending::Protocol("the client asked for the list of volumes too often"));
        }
        for volume in self.offer.list() {
            let mut server = Vec::new();
            server.put32(volume.name.len() as u32);
            server.extend_from_slice(volume.name.as_bytes());
            self.reply(option::LIST, answer::SERVER, &server);
            if self.replies.len() >= LIST_BYTES {
                self.send()?;
            }
        }
        self.reply(option::LIST, answer::ACK, &[]);
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8]) {
        let (answer, text): (u32, &[u8]) = match self.dialect {
            _ if !data.is_empty() => (answer::ERR_INVALID, b"STRUCTURED_REPLY takes no data"),
            Dialect::Simple => (answer::ACK, b""),
            Dialect::Structured => {
                (answer::ERR_INVALID, b"structured replies were negotiated already")
            }
            Dialect::Extended => {
                (answer::ERR_EXT_HEADER_REQD, b"extended headers were negotiated already")
            }
        };
        if answer == answer::ACK {
            self.dialect = Dialect::Structured;
        }
        self.reply(option::STRUCTURED_REPLY, answer, text);
    }

    fn extended_headers(&mut self, data: &[u8]) {
        if !data.is_empty() {
            self.reply(
                option::EXTENDED_HEADERS,
                answer::ERR_INVALID,
                b"EXTENDED_HEADERS takes no data",
            );
        } else if self.dialect == Dialect::Extended {
            self.reply(
                option::EXTENDED_HEADERS,
                answer::ERR_INVALID,
                b"extended headers were negotiated already",
            );
        } else {
            self.dialect = Dialect::Extended;
            self.reply(option::EXTENDED_HEADERS, answer::ACK, &[]);
        }
    }

    /// INFO and GO: everything that a client may want to know of a volume, and for GO the start of
    /// transmission.
    fn info(&mut self, option: u32, data: &[u8]) -> Next {
        let Some((name, items)) = parse_info(data) else {
            self.reply(option, answer::ERR_INVALID, b"not a name and a list of items");
            return Next::Option;
        };
        let (opened, (volume, writes)) = match self.open(name) {
            Ok(found) => found,
            Err((answer, text)) => {
                self.reply(option, answer, text.as_bytes());
                return Next::Option;
            }
        };
        let agreed = self.agree(name, opened.clone(), volume, writes);
        let mut export = Vec::new();
        export.put16(info::EXPORT);
        export.put64(agreed.volume.size());
        // INFO tells what the server can do, GO what it will.
        export.put16(offers(&agreed, agreed.allocation || option == option::INFO));
        self.reply(option, answer::INFO, &export);
        // Each is told once, however often it is asked for.
        for item in [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] {
            if !items.contains(&item) {
                continue;
            }
            let mut item_reply = item.to_be_bytes().to_vec();
            match item {
                info::NAME => item_reply.extend_from_slice(opened.as_bytes()),
                info::DESCRIPTION => item_reply.extend_from_slice(b"Onefold volume"),
                _ => {
                    item_reply.put32(1);
                    item_reply.put32(PREFERRED_BYTES);
                    item_reply.put32(self.limits.payload_bytes);
                }
            }
            self.reply(option, answer::INFO, &item_reply);
        }
        self.reply(option, answer::ACK, &[]);
        if option == option::GO { Next::Transmission(agreed) } else { Next::Option }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.allocation_for = None;
        }
        if self.dialect == Dialect::Simple {
            self.reply(option, answer::ERR_INVALID, b"metadata contexts need structured replies");
            return;
        }
        let Some((name, queries)) = parse_queries(data, self.limits) else {
            self.reply(option, answer::ERR_INVALID, b"not a name and a list of queries");
            return;
        };
        if let Err((answer, text)) = self.open(name) {
            self.reply(option, answer, text.as_bytes());
            return;
        }
        // A list without queries, or of a whole namespace, is a list of everything in it; set takes
        // exact names only.
        let wanted = |query: &&[u8]| {
            **query == *BASE_ALLOCATION.as_bytes() || (!set && **query == *b"base:")
        };
        if queries.iter().any(wanted) || (!set && queries.is_empty()) {
            let mut context = Vec::new();
            context.put32(if set { BASE_ALLOCATION_ID } else { 0 });
            context.extend_from_slice(BASE_ALLOCATION.as_bytes());
            self.reply(option, answer::META_CONTEXT, &context);
            if set {
                self.allocation_for = Some(name.to_vec());
            }
        }
        self.reply(option, answer::ACK, &[]);
    }

    /// Counts a list of volumes; false when there were enough.
    fn may_list(&self) -> bool {
        self.lists.set(self.lists.get() + 1);
        self.lists.get() <= LISTS_MAX
    }

    /// The volume that a client calls `name`, whether it may change it, and its own name. The empty
    /// name means the only volume, where there is only one.
    fn open(&self, name: &[u8]) -> Result<(String, (Arc<dyn Volume>, bool)), (u32, String)> {
        let unknown = |text: &str| (answer::ERR_UNKNOWN, text.to_owned());
        if name.len() > self.limits.name_bytes as usize {
            return Err((answer::ERR_TOO_BIG, "the name is too long".to_owned()));
        }
        let name = std::str::from_utf8(name).map_err(|_| unknown("the name is not UTF-8"))?;
        if name.len() > VOLUME_NAME_BYTES {
            return Err(unknown("no volume has so long a name"));
        }
        let all = if name.is_empty() && self.may_list() { self.offer.list() } else { Vec::new() };
        let name = match &all[..] {
            [only] => only.name.clone(),
            _ => name.to_owned(),
        };
        let volume = self.offer.open(&name).map_err(|error: Error| {
            self.replaced.set(self.replaced.get() || Replaced::caused(&error));
            let answer = match error.kind() {
                Kind::NotFound | Kind::InvalidInput => answer::ERR_UNKNOWN,
                Kind::Denied | Kind::Busy => answer::ERR_POLICY,
                _ => answer::ERR_PLATFORM,
            };
            (answer, error.to_string())
        })?;
        let (volume, writes) = volume;
        let writes = writes && !volume.is_read_only();
        Ok((name, (volume, writes)))
    }

    /// `name` is the volume's as the client says it, and `opened` as it is.
    fn agree(&self, name: &[u8], opened: String, volume: Arc<dyn Volume>, writes: bool) -> Agreed {
        Agreed {
            volume,
            name: opened,
            writes,
            dialect: self.dialect,
            allocation: self.allocation_for.as_deref() == Some(name),
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.replies.put64(OPTION_REPLY);
        self.replies.put32(option);
        self.replies.put32(kind);
        self.replies.put32(data.len() as u32);
        self.replies.extend_from_slice(data);
    }

    fn send(&mut self) -> Result<(), Ending> {
        if self.replaced.get() {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
        }
        let sent = self.outbox.hold().send([&self.replies[..]].into_iter());
        self.replies.clear();
        Ok(sent?)
    }
}

/// The transmission flags of a volume.
fn offers(agreed: &Agreed, allocation: bool) -> u16 {
    let dialect = agreed.dialect;
    let always = offer::HAS_FLAGS
        | offer::SEND_FLUSH
        | offer::SEND_FUA
        | offer::SEND_TRIM
        | offer::SEND_WRITE_ZEROES
        | offer::CAN_MULTI_CONN
        | offer::SEND_CACHE
        | offer::SEND_FAST_ZERO;
    let chunks = if dialect >= Dialect::Structured { offer::SEND_DF } else { 0 };
    let payload =
        if dialect == Dialect::Extended && allocation { offer::BLOCK_STATUS_PAYLOAD } else { 0 };
    let no_changes = if agreed.writes { 0 } else { offer::READ_ONLY };
    always | no_changes | chunks | payload
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    let items = fields.bytes(usize::from(count) * 2)?;
    fields.is_empty().then(|| {
        (name, items.chunks_exact(2).map(|item| u16::from_be_bytes([item[0], item[1]])).collect())
    })
}

fn parse_queries<'a>(data: &'a [u8], limits: &Limits) -> Option<(&'a [u8], Vec<&'a [u8]>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    if count > limits.meta_queries {
        return None;
    }
    let queries: Option<Vec<_>> = (0..count)
        .map(|_| fields.string().filter(|query| query.len() <= limits.name_bytes as usize))
        .collect();
    queries.filter(|_| fields.is_empty()).map(|queries| (name, queries))
}
