//! A connection to a Ceph cluster: commands to its monitors, and I/O contexts for its pools.
#![allow(
    unsafe_code,
    reason = "librados is called with handles that live as long as what owns them here, and with \
              texts that outlive the call"
)]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    io,
    net::SocketAddr,
    path::Path,
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{
    Error, Kind, Result,
    object::{Holder, Refusal},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    ceph_args::Said,
    library::{Handle, Library, ListItem, TimeVal, library},
    pool_info::PoolInfo,
};

/// How long a fence lasts. The cluster's map keeps each address for so long.
const FENCE: Duration = Duration::from_secs(365 * 86_400);

/// What stands in the place of an address where the monitors are asked whether one could be shut out. It has
/// the form that Ceph's profile for block devices asks for, and no monitor takes it for an address.
const NOBODY: &str = "nobody/0";

/// What a user without the right to shut others out may not do, and the right.
const SHUT_OUT: &str = "shut out a session that was here before";
const SHUT_OUT_RIGHT: &str = "mon 'allow command \"osd blocklist\"', or mon 'profile rbd'";

/// `LIBRADOS_LOCK_FLAG_MAY_RENEW`.
const MAY_RENEW: u8 = 1;

/// Bytes of lockers' names that are asked for: an exclusive lock has one holder.
const LOCKERS: usize = 4096;

/// Longest value of an option that is read.
const SETTING: usize = 4096;

/// When a cluster last replied to an operation of this process.
static REPLIED: Mutex<Option<Instant>> = Mutex::new(None);

/// When a cluster last replied to a read or a change of this process, also by a refusal; `None` before the first
/// reply.
#[must_use]
pub fn last_reply() -> Option<Instant> {
    *REPLIED.lock()
}

/// True for the code of an operation that had a reply in time.
fn is_reply(code: c_int) -> bool {
    code != -rustix::io::Errno::TIMEDOUT.raw_os_error()
}

/// An operation is over, with this code.
pub(super) fn is_over(code: c_int) {
    if is_reply(code) {
        *REPLIED.lock() = Some(Instant::now());
    }
}

/// A connection. The connection ends when its last I/O context is dropped.
pub struct Connection {
    library: &'static Library,
    cluster: Handle,
    /// The user without `client.`.
    user: String,
}

// SAFETY: librados takes calls on a cluster from any thread.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// A text for librados; those with a zero byte inside are refused.
pub(super) fn text(what: impl Into<Vec<u8>>) -> Result<CString, Refusal> {
    CString::new(what).map_err(|e| {
        Refusal::Failed(
            Error::new(Kind::InvalidInput, "a name or key with a zero byte").caused_by(e),
        )
    })
}

/// The error for the negative code that a call returned.
fn failed(what: impl std::fmt::Display, code: c_int) -> Error {
    Error::from_io(what, io::Error::from_raw_os_error(-code))
}

/// Why an operation was refused.
pub(super) fn refusal(code: c_int) -> Refusal {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(-code) {
        Errno::NOENT => Refusal::Missing,
        Errno::EXIST => Refusal::Exists,
        // A comparison, and an older or newer version.
        Errno::CANCELED | Errno::RANGE | Errno::OVERFLOW => Refusal::Mismatch,
        Errno::BUSY => Refusal::Busy,
        Errno::NOSPC | Errno::DQUOT => Refusal::Full,
        // Ceph's EBLOCKLISTED.
        Errno::SHUTDOWN => Refusal::Fenced,
        Errno::TIMEDOUT => Refusal::Unknown,
        Errno::OPNOTSUPP => Refusal::Unsupported,
        _ => Refusal::Failed(failed("the Ceph cluster", code)),
    }
}

pub(super) fn done(code: c_int) -> Result<(), Refusal> {
    if code < 0 { Err(refusal(code)) } else { Ok(()) }
}

/// True for the errors of a command that the user has no right to.
fn is_denied(code: c_int) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_raw_os_error(-code), Errno::ACCESS | Errno::PERM)
}

impl Connection {
    /// Connects with a configuration file, or with the default one of Ceph's own commands.
    /// `CEPH_ARGS` is used too, also for the user (`--id`, or `--name`). An operation without a
    /// reply is given up after `timeout`: its result is unknown.
    ///
    /// # Errors
    /// `Unsupported`: librados is missing. `Denied`: the cluster accepts none of our keys.
    /// Otherwise the error of the cluster.
    pub fn open(configuration: Option<&Path>, timeout: Duration) -> Result<Arc<Connection>> {
        let library = library()?;
        let said = Said::of(&std::env::var("CEPH_ARGS").unwrap_or_default())?;
        let configuration = configuration.or(said.configuration.as_deref());
        let id = text(said.user.as_str()).map_err(as_error)?;
        let mut cluster = ptr::null_mut();
        // SAFETY: the handle is written before it is read; the name is copied.
        let code = unsafe { (library.create)(&raw mut cluster, id.as_ptr()) };
        if code < 0 {
            return Err(failed("a connection to Ceph can't be made", code));
        }
        // From here on dropping the connection shuts it down.
        let connection = Connection { library, cluster, user: said.user };
        let path = configuration
            .map(|path| text(path.as_os_str().as_encoded_bytes()))
            .transpose()
            .map_err(as_error)?;
        let shown = configuration
            .map_or_else(|| "Ceph's configuration".to_owned(), |path| path.display().to_string());
        // SAFETY: a path or null, which means the usual places.
        let code = unsafe {
            (library.conf_read_file)(
                cluster,
                path.as_ref().map_or(ptr::null(), |path| path.as_ptr()),
            )
        };
        if code < 0 {
            return Err(failed(shown, code));
        }
        // SAFETY: null means CEPH_ARGS.
        let code = unsafe { (library.conf_parse_env)(cluster, ptr::null()) };
        if code < 0 {
            return Err(failed("CEPH_ARGS", code));
        }
        let seconds = timeout.as_secs().max(1).to_string();
        for option in ["rados_osd_op_timeout", "rados_mon_op_timeout", "client_mount_timeout"] {
            connection.set(option, &seconds)?;
        }
        // SAFETY: the cluster was made above.
        let code = unsafe { (library.connect)(cluster) };
        if code < 0 {
            return Err(connection.no_entry(&shown, code));
        }
        Ok(Arc::new(connection))
    }

    /// The reason why the cluster refused the connection.
    fn no_entry(&self, shown: &str, code: c_int) -> Error {
        let (user, keyring) = (&self.user, self.setting("keyring"));
        let denied = |what: String| {
            Error::new(Kind::Denied, what).caused_by(io::Error::from_raw_os_error(-code))
        };
        let missing = rustix::io::Errno::from_raw_os_error(-code) == rustix::io::Errno::NOENT;
        if missing && self.setting("mon_host").is_empty() {
            return failed(
                format_args!("{shown} names no monitor of a Ceph cluster (mon_host)"),
                code,
            );
        }
        if missing {
            return denied(format!(
                "there is no key of user client.{user} in {keyring}; CEPH_ARGS=\"--id NAME\" takes \
                 another user"
            ));
        }
        if is_denied(code) {
            return denied(format!(
                "the Ceph cluster of {shown} does not let user client.{user} in: its key in \
                 {keyring} is not the one that the cluster has, or it needs the right mon 'allow r'"
            ));
        }
        failed(format_args!("the Ceph cluster of {shown} does not answer"), code)
    }

    /// An option, empty when it is not set.
    fn setting(&self, option: &str) -> String {
        let Ok(name) = text(option) else { return String::new() };
        let mut value = vec![0u8; SETTING];
        // SAFETY: the buffer has so many bytes; what is written into it ends with a zero byte.
        let code = unsafe {
            (self.library.conf_get)(
                self.cluster,
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        };
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(0);
        if code < 0 { String::new() } else { String::from_utf8_lossy(&value[..end]).into_owned() }
    }

    /// The refusal for a user without the right `right`, who may not do `what`; for other codes the
    /// ordinary refusal.
    fn refused(&self, code: c_int, what: &str, right: impl std::fmt::Display) -> Refusal {
        if !is_denied(code) {
            return refusal(code);
        }
        let sentence =
            format!("user client.{} may not {what}; it needs the right {right}", self.user);
        Refusal::Denied(
            Error::new(Kind::Denied, sentence).caused_by(io::Error::from_raw_os_error(-code)),
        )
    }

    fn set(&self, option: &str, value: &str) -> Result<()> {
        let (name, value) = (text(option).map_err(as_error)?, text(value).map_err(as_error)?);
        // SAFETY: both texts live until the call returns.
        let code = unsafe { (self.library.conf_set)(self.cluster, name.as_ptr(), value.as_ptr()) };
        if code < 0 { Err(failed(format_args!("option {option} of Ceph"), code)) } else { Ok(()) }
    }

    /// The address of this client, which no other client ever has.
    pub(super) fn address(&self) -> Result<String> {
        let mut addresses: *mut c_char = ptr::null_mut();
        // SAFETY: the library gives a text that it takes back below.
        let code = unsafe { (self.library.getaddrs)(self.cluster, &raw mut addresses) };
        if code < 0 || addresses.is_null() {
            return Err(failed("the address of this client", code));
        }
        // SAFETY: it ends with a zero byte.
        let address = unsafe { CStr::from_ptr(addresses) }.to_string_lossy().into_owned();
        // SAFETY: nobody reads it after this.
        unsafe { (self.library.buffer_free)(addresses) };
        Ok(plain_address(&address))
    }

    /// Sends a command to the monitors; returns their answer, which is JSON where the command has
    /// one.
    ///
    /// # Errors
    /// The cluster's error, with the sentence of the monitors.
    pub fn command(&self, command: &Value) -> Result<Value> {
        let (code, out, said) = self.ask(command).map_err(as_error)?;
        if code < 0 {
            let prefix = command["prefix"].as_str().unwrap_or("a command");
            if is_denied(code) {
                // Commands that only read are allowed to every user who may read.
                let right = if prefix.contains("application") {
                    format!("allow command \"{prefix}\"")
                } else {
                    "allow r".to_owned()
                };
                return Err(as_error(self.refused(
                    code,
                    &format!("ask the monitors for {prefix:?}"),
                    format_args!("mon '{right}'"),
                )));
            }
            return Err(failed(format_args!("{prefix}: {}", String::from_utf8_lossy(&said)), code));
        }
        Ok(serde_json::from_slice(&out).unwrap_or(Value::Null))
    }

    /// Sends a command to the monitors; returns its code, their answer, and their sentence.
    fn ask(&self, command: &Value) -> Result<(c_int, Vec<u8>, Vec<u8>), Refusal> {
        let line = text(command.to_string())?;
        let (mut out, mut out_bytes, mut said, mut said_bytes) =
            (ptr::null_mut(), 0usize, ptr::null_mut(), 0usize);
        let lines = [line.as_ptr()];
        let (outs, says) =
            ((&raw mut out, &raw mut out_bytes), (&raw mut said, &raw mut said_bytes));
        // SAFETY: one command, no input, and places for two buffers that are given back below.
        let code = unsafe {
            (self.library.mon_command)(
                self.cluster,
                lines.as_ptr(),
                1,
                ptr::null(),
                0,
                outs.0,
                outs.1,
                says.0,
                says.1,
            )
        };
        let take = |buffer: *mut c_char, bytes: usize| {
            if buffer.is_null() {
                return Vec::new();
            }
            // SAFETY: the library gave so many bytes.
            let taken = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) }.to_vec();
            // SAFETY: they were copied.
            unsafe { (self.library.buffer_free)(buffer) };
            taken
        };
        Ok((code, take(out, out_bytes), take(said, said_bytes)))
    }

    /// Shows that this user may shut clients out: the monitors are asked for a change of the blocklist that they
    /// refuse, and look at the user's rights before they look at the address. The cluster's map does not change.
    pub(super) fn may_fence(&self) -> Result<(), Refusal> {
        let add = json!({ "prefix": "osd blocklist", "blocklistop": "add", "addr": NOBODY });
        let (code, ..) = self.ask(&add)?;
        if code == -rustix::io::Errno::INVAL.raw_os_error() {
            return Ok(());
        }
        if code < 0 { Err(self.refused(code, SHUT_OUT, SHUT_OUT_RIGHT)) } else { Ok(()) }
    }

    /// Fences a client by its address, and waits until none of its operations can change anything
    /// that we read from now on.
    pub(super) fn fence(&self, address: &str) -> Result<(), Refusal> {
        if !is_one_client(address) {
            let what = format!(
                "'{}' wrote here last, which is no address of a client that could be shut out",
                address.escape_debug()
            );
            return Err(Refusal::Failed(Error::new(Kind::Corrupt, what)));
        }
        let address = text(address)?;
        // SAFETY: the text lives until the call returns; it is not written to.
        let code = unsafe {
            (self.library.blocklist_add)(
                self.cluster,
                address.as_ptr().cast_mut(),
                FENCE.as_secs() as u32,
            )
        };
        if code < 0 {
            return Err(self.refused(code, SHUT_OUT, SHUT_OUT_RIGHT));
        }
        // Our own operations carry the new map's number: a disk that takes one of them knows the
        // fence. SAFETY: the cluster is connected.
        done(unsafe { (self.library.wait_for_latest_osdmap)(self.cluster) })
    }
}

/// A refusal where an error is due.
pub(super) fn as_error(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Denied(error) | Refusal::Failed(error) => error,
        other => Error::new(Kind::Io, other.to_string()),
    }
}

/// An address as lockers show it: without brackets and without the protocol's name.
fn plain_address(address: &str) -> String {
    let inner =
        address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    let first = inner.split(',').next().unwrap_or_default();
    ["v2:", "v1:", "any:"]
        .iter()
        .find_map(|kind| first.strip_prefix(kind))
        .unwrap_or(first)
        .to_owned()
}

/// True for the address of one client. Who was here last stands in the pools, where others may have
/// written; an address without a nonce would shut out a whole host.
pub(super) fn is_one_client(address: &str) -> bool {
    let Some((socket, nonce)) = address.rsplit_once('/') else { return false };
    let digits = nonce.bytes().all(|byte| byte.is_ascii_digit());
    socket.parse::<SocketAddr>().is_ok() && digits && nonce.parse::<u32>().is_ok_and(|n| n != 0)
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: I/O contexts hold the connection, so that none is left.
        unsafe { (self.library.shutdown)(self.cluster) };
    }
}

/// An I/O context: one pool of a connection.
pub(super) struct PoolIo {
    pub(super) library: &'static Library,
    pub(super) io: Handle,
    name: String,
    connection: Arc<Connection>,
}

// SAFETY: librados takes calls on an I/O context from any thread; what belongs to it as a whole, as
// its last version, is not used.
unsafe impl Send for PoolIo {}
// SAFETY: as above.
unsafe impl Sync for PoolIo {}

/// The place where a listing continues.
pub(super) struct Cursor {
    pool: Arc<PoolIo>,
    cursor: Handle,
}

// SAFETY: a cursor is only read, by one call at a time.
unsafe impl Send for Cursor {}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: it was made by this context.
        unsafe { (self.pool.library.object_list_cursor_free)(self.pool.io, self.cursor) };
    }
}

impl Drop for PoolIo {
    fn drop(&mut self) {
        // SAFETY: whoever has operations in flight waits for them.
        unsafe { (self.library.ioctx_destroy)(self.io) };
    }
}

impl PoolIo {
    /// A pool of a library that stands in for librados.
    #[cfg(test)]
    pub(super) fn over(library: &'static Library) -> Arc<PoolIo> {
        let connection =
            Arc::new(Connection { library, cluster: ptr::null_mut(), user: String::new() });
        Arc::new(PoolIo { library, io: ptr::null_mut(), name: String::new(), connection })
    }

    pub(super) fn open(connection: &Arc<Connection>, pool: &PoolInfo) -> Result<Arc<PoolIo>> {
        let mut io = ptr::null_mut();
        // SAFETY: the handle is written before it is read.
        let code =
            unsafe { (connection.library.ioctx_create2)(connection.cluster, pool.id, &raw mut io) };
        if code < 0 {
            return Err(failed(format_args!("pool '{}'", pool.name.escape_debug()), code));
        }
        Ok(Arc::new(PoolIo {
            library: connection.library,
            io,
            name: pool.name.clone(),
            connection: connection.clone(),
        }))
    }

    /// The refusal of an operation that needs `rights`, such as `rwx`.
    pub(super) fn refused(&self, code: c_int, rights: &str) -> Refusal {
        let what = match rights {
            "r" => "read",
            "rw" => "write to",
            _ => "take locks in",
        };
        self.connection.refused(
            code,
            &format!("{what} pool '{}'", self.name.escape_debug()),
            format_args!("osd 'allow {rights} pool={}'", self.name),
        )
    }

    fn locked(&self, code: c_int) -> Result<(), Refusal> {
        if code < 0 { Err(self.refused(code, "rwx")) } else { Ok(()) }
    }

    pub(super) fn lock(
        &self,
        object: &str,
        lock: &str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        let (object, lock, cookie, about) =
            (text(object)?, text(lock)?, text(cookie)?, text("onefold")?);
        let mut lease = lease.map(|lease| TimeVal {
            seconds: lease.as_secs() as i64,
            microseconds: lease.subsec_micros().into(),
        });
        let lease = lease.as_mut().map_or(ptr::null_mut(), |lease| &raw mut *lease);
        let (object, lock, cookie, about) =
            (object.as_ptr(), lock.as_ptr(), cookie.as_ptr(), about.as_ptr());
        // SAFETY: texts and time live until the call returns.
        self.locked(unsafe {
            (self.library.lock_exclusive)(self.io, object, lock, cookie, about, lease, MAY_RENEW)
        })
    }

    pub(super) fn unlock(&self, object: &str, lock: &str, cookie: &str) -> Result<(), Refusal> {
        let (object, lock, cookie) = (text(object)?, text(lock)?, text(cookie)?);
        // SAFETY: the texts live until the call returns.
        self.locked(unsafe {
            (self.library.unlock)(self.io, object.as_ptr(), lock.as_ptr(), cookie.as_ptr())
        })
    }

    /// The holder of an exclusive lock, and the name under which Ceph knows it.
    pub(super) fn locker(
        &self,
        object: &str,
        lock: &str,
    ) -> Result<Option<(Holder, String)>, Refusal> {
        let (object, lock) = (text(object)?, text(lock)?);
        let mut exclusive = 0;
        let mut buffers: [Vec<u8>; 4] = std::array::from_fn(|_| vec![0u8; LOCKERS]);
        let mut lengths = [LOCKERS; 4];
        let at: Vec<(*mut c_char, *mut usize)> = buffers
            .iter_mut()
            .zip(&mut lengths)
            .map(|(buffer, length)| (buffer.as_mut_ptr().cast(), &raw mut *length))
            .collect();
        // SAFETY: four buffers with their lengths, and texts that live until the call returns.
        let count = unsafe {
            (self.library.list_lockers)(
                self.io,
                object.as_ptr(),
                lock.as_ptr(),
                &raw mut exclusive,
                at[0].0,
                at[0].1,
                at[1].0,
                at[1].1,
                at[2].0,
                at[2].1,
                at[3].0,
                at[3].1,
            )
        };
        if count <= 0 {
            return if count == 0 { Ok(None) } else { Err(self.refused(count as c_int, "rwx")) };
        }
        // A tag, then clients, cookies and addresses, each ended by a zero byte; the first of each
        // is the one.
        let first = |n: usize| {
            let bytes = &buffers[n];
            String::from_utf8_lossy(
                &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())],
            )
            .into_owned()
        };
        Ok(Some((Holder { identity: plain_address(&first(3)), cookie: first(2) }, first(1))))
    }

    pub(super) fn break_lock(
        &self,
        object: &str,
        lock: &str,
        client: &str,
        cookie: &str,
    ) -> Result<(), Refusal> {
        let (object, lock, client, cookie) =
            (text(object)?, text(lock)?, text(client)?, text(cookie)?);
        // SAFETY: the texts live until the call returns.
        self.locked(unsafe {
            (self.library.break_lock)(
                self.io,
                object.as_ptr(),
                lock.as_ptr(),
                client.as_ptr(),
                cookie.as_ptr(),
            )
        })
    }

    /// The cursor before all names whose hash, read from its last bit on, is `place` or more: librados lists
    /// a pool in that order, and cuts it into slices by it.
    pub(super) fn cursor_at(self: &Arc<Self>, place: u32) -> Cursor {
        let cursor = |cursor| Cursor { pool: self.clone(), cursor };
        let [begin, mut start, mut end] = std::array::from_fn(|_| {
            // SAFETY: each call gives a new cursor, freed by its owner.
            cursor(unsafe { (self.library.object_list_begin)(self.io) })
        });
        // SAFETY: as above.
        let last = cursor(unsafe { (self.library.object_list_end)(self.io) });
        // SAFETY: cursors of this context; the library writes over the two that it is given.
        unsafe {
            (self.library.object_list_slice)(
                self.io,
                begin.cursor,
                last.cursor,
                place as usize,
                1 << 32,
                &raw mut start.cursor,
                &raw mut end.cursor,
            );
        }
        start
    }

    /// The last place that is not behind a cursor.
    pub(super) fn place_of(self: &Arc<Self>, cursor: &Cursor) -> u32 {
        let (mut low, mut high) = (0u32, u32::MAX);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let there = self.cursor_at(middle);
            // SAFETY: cursors of this context.
            let order = unsafe {
                (self.library.object_list_cursor_cmp)(self.io, there.cursor, cursor.cursor)
            };
            if order <= 0 {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Some names from a cursor on, and the cursor behind them.
    pub(super) fn list(
        self: &Arc<Self>,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<(Vec<String>, Option<Cursor>), Refusal> {
        let cursor = |cursor| Cursor { pool: self.clone(), cursor };
        // SAFETY: each call gives a new cursor, freed by its owner.
        let (begin, end) = unsafe {
            ((self.library.object_list_begin)(self.io), (self.library.object_list_end)(self.io))
        };
        let (begin, end) = (cursor(begin), cursor(end));
        let empty = || ListItem {
            name_bytes: 0,
            name: ptr::null_mut(),
            namespace_bytes: 0,
            namespace: ptr::null_mut(),
            locator_bytes: 0,
            locator: ptr::null_mut(),
        };
        let mut items: Vec<ListItem> = (0..most.max(1)).map(|_| empty()).collect();
        // The library writes over a cursor that is there already.
        let next = cursor(
            // SAFETY: as above.
            unsafe { (self.library.object_list_begin)(self.io) },
        );
        let mut place = next.cursor;
        let start = from.unwrap_or(&begin).cursor;
        let (room, items_at) = (items.len(), items.as_mut_ptr());
        // SAFETY: so many items, all cursors of this context.
        let count = unsafe {
            (self.library.object_list)(
                self.io,
                start,
                end.cursor,
                room,
                ptr::null(),
                0,
                items_at,
                &raw mut place,
            )
        };
        if count < 0 {
            return Err(self.refused(count, "r"));
        }
        let name = |item: &ListItem| {
            if item.name.is_null() {
                return String::new();
            }
            // SAFETY: the library gave so many bytes.
            String::from_utf8_lossy(unsafe {
                std::slice::from_raw_parts(item.name.cast::<u8>(), item.name_bytes)
            })
            .into_owned()
        };
        let names = items[..count as usize].iter().map(name).collect();
        // SAFETY: the items that the call filled; the names were copied.
        unsafe { (self.library.object_list_free)(count as usize, items_at) };
        // SAFETY: a cursor of this context.
        let is_end = unsafe { (self.library.object_list_is_end)(self.io, next.cursor) } != 0;
        Ok((names, (!is_end).then_some(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_reply_and_a_time_that_ran_out_is_none() {
        assert!(is_reply(0) && is_reply(-rustix::io::Errno::NOENT.raw_os_error()));
        assert!(!is_reply(-rustix::io::Errno::TIMEDOUT.raw_os_error()));
    }

    #[test]
    fn addresses_are_shown_one_way() {
        for shown in [
            "127.0.0.1:0/42",
            "v2:127.0.0.1:0/42",
            "[v2:127.0.0.1:0/42,v1:127.0.0.1:0/42]",
            "any:127.0.0.1:0/42",
        ] {
            assert_eq!(plain_address(shown), "127.0.0.1:0/42");
        }
        assert_eq!(
            (plain_address("v2:[::1]:0/7"), plain_address("[::1]:0/7")),
            ("[::1]:0/7".into(), "[::1]:0/7".into())
        );
    }

    #[test]
    fn rule_02_a_forged_owner_shuts_out_no_host() {
        for one in ["127.0.0.1:0/42", "10.1.2.3:6800/4294967295", "[2001:db8::1]:0/7"] {
            assert!(is_one_client(one), "{one}");
        }
        for other in [
            "",
            "10.1.2.3",
            "10.1.2.3:0",
            "10.1.2.3:0/0",
            "10.1.2.3:0/00",
            "10.1.2.0/24",
            "10.1.2.3:0/+7",
            "10.1.2.3:0/7,10.1.2.4:0/8",
            "10.1.2.3:0/4294967296",
            "local.1.2.3",
            "2001:db8::1/7",
        ] {
            assert!(!is_one_client(other), "{other}");
        }
    }
}
