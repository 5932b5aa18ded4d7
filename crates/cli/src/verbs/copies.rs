//! A store whose volumes are copied, of either engine that has snapshots of them: served, or opened for this.

use std::{
    io::{Read, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_block::{MEMORY_MIN, SendWhat, Settings};
use onefold_cluster::Session;
use onefold_core::{Error, Kind, Result};
use onefold_stream::read_ahead;

use super::{
    CHANGE_WAIT,
    copied::{Received, Sent},
    refused, served_or_not,
    volume::block::domain_of,
};
use onefold::parts::{
    Found,
    cluster_store::{Opened, Url, gateway},
    control::{Client, ReceiveLine, Request},
    store_file::{StoreFile, WorkingStore},
};
use onefold_backend::random::random_bytes;
use onefold_console::failure::Failure;

/// A store of volumes.
pub(super) enum Place {
    /// Of the block engine.
    Block(Box<StoreFile>),
    /// Of the cluster engine.
    Cluster(Url),
}

/// A store that nobody serves, opened for a copy.
pub(super) enum Here {
    /// Of the block engine.
    Block(WorkingStore),
    /// Of the cluster engine.
    Cluster(Opened),
}

/// The part of a store that is given.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    /// The content of a volume or a snapshot, as raw data.
    Export(&'a str),
    /// A snapshot.
    Send(&'a SendWhat),
}

impl Place {
    /// The store at a path or URL.
    ///
    /// # Errors
    /// A sentence for an archive, which has no such copies.
    pub(super) fn at(store: &std::path::Path, why_not: &str) -> Result<Place, Failure> {
        match Found::at(store)? {
            Found::Block(file) => Ok(Place::Block(file)),
            Found::Cluster(url) => Ok(Place::Cluster(url)),
            other => Err(refused(store, &other, why_not)),
        }
    }

    /// Asks the server of the store when there is one, else does it here. A store of the cluster engine of which
    /// something is `given` is only looked at.
    pub(super) fn served_or_not<T>(
        &self,
        given: bool,
        mut ask: impl FnMut(&mut Client) -> Result<T>,
        mut here: impl FnMut(&Here) -> Result<T>,
    ) -> Result<T> {
        match self {
            Place::Block(file) => served_or_not(file, ask, || {
                let here_now = Here::Block(file.work(Settings::for_memory(MEMORY_MIN))?);
                let done = here(&here_now);
                let closed = here_now.close();
                done.and_then(|value| closed.map(|()| value))
            }),
            Place::Cluster(url) => {
                let begun = Instant::now();
                loop {
                    if let Some(mut server) = url.server()? {
                        return ask(&mut server);
                    }
                    let opened = match given {
                        true => Opened::look(url),
                        false => Opened::open(url, onefold_cluster::Settings::default()),
                    };
                    match opened {
                        // A server is just coming or going.
                        Err(error)
                            if error.kind() == Kind::Busy && begun.elapsed() < CHANGE_WAIT =>
                        {
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        Err(error) => return Err(error),
                        Ok(opened) => {
                            if !given && let Some(mut server) = gateway(url, &opened.session)? {
                                return ask(&mut server);
                            }
                            return here(&Here::Cluster(opened));
                        }
                    }
                }
            }
        }
    }

    /// The receives that are under way, as the server tells where there is one. Nothing in the store changes.
    pub(super) fn receives(&self) -> Result<Vec<ReceiveLine>> {
        match self {
            Place::Block(file) => super::receiving::all(file),
            Place::Cluster(url) => match url.server()? {
                Some(mut server) => server.ask(&Request::ReceiveList),
                None => receives(&Opened::look(url)?.session),
            },
        }
    }
}

/// What is being received into a store of the cluster engine.
pub(super) fn receives(session: &Arc<Session>) -> Result<Vec<ReceiveLine>> {
    let all = onefold_cluster::Copies::of(session).receives()?;
    Ok(all.into_iter().map(ReceiveLine::from).collect())
}

impl Here {
    /// Writes a stream.
    pub(super) fn give(&self, what: Given<'_>, out: &mut dyn Write) -> Result<Sent> {
        match self {
            Here::Block(working) => {
                let copies = onefold_block::Copies::of(working.store());
                let totals = match what {
                    Given::Export(name) => copies.export(name, out),
                    Given::Send(what) => copies.send(what, out),
                };
                totals.map(|totals| Sent::from(&totals))
            }
            Here::Cluster(opened) => give(&opened.session, what, out),
        }
    }

    /// Makes a volume of a stream of raw data; gives its size.
    pub(super) fn import(&self, name: &str, domain: Option<&str>, input: impl Read) -> Result<u64> {
        match self {
            Here::Block(working) => {
                let domain = domain_of(working.store(), domain)?;
                let copies = onefold_block::Copies::of(working.store()).in_domain(domain);
                copies.import(name, input, &mut |_| Ok(()))
            }
            Here::Cluster(opened) => {
                one_domain(domain)?;
                import(&opened.session, name, input, &mut |_| Ok(()))
            }
        }
    }

    /// Makes a snapshot of a stream; a sender that asks gets its answers by `out`.
    pub(super) fn receive(
        &self,
        (into, rollback): (Option<&str>, bool),
        domain: Option<&str>,
        input: impl Read,
        out: &mut dyn Write,
    ) -> Result<Received> {
        match self {
            Here::Block(working) => {
                let domain = domain_of(working.store(), domain)?;
                let copies = onefold_block::Copies::of(working.store()).in_domain(domain);
                let (nonce, look) = (random_bytes()?, &mut |_| Ok(()));
                let received =
                    copies.receive_or_negotiate(into, rollback, input, out, &nonce, look)?;
                Ok(Received::from(&received))
            }
            Here::Cluster(opened) => {
                one_domain(domain)?;
                let session = &opened.session;
                let copies = onefold_cluster::Copies::of(session);
                let received = copies.receive(into, rollback, input, &mut |_| Ok(()));
                tidy(session);
                received.map(|received| Received::from(&received))
            }
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Here::Block(working) => working.close(),
            Here::Cluster(_) => Ok(()),
        }
    }
}

/// Writes a stream of a store of the cluster engine.
pub(super) fn give(session: &Arc<Session>, what: Given<'_>, out: &mut dyn Write) -> Result<Sent> {
    let copies = onefold_cluster::Copies::of(session);
    let sending = match what {
        Given::Export(name) => copies.exporting(name)?,
        Given::Send(what) => copies.sending(what)?,
    };
    let writer = sending.writer(out)?;
    let writer = read_ahead(writer, |parcels| sending.send_to(parcels).map(drop))?;
    writer.end(sending.begin().blocks).map(|totals| Sent::from(&totals))
}

/// Makes a volume of a store of the cluster engine of a stream of raw data.
pub(super) fn import(
    session: &Arc<Session>,
    name: &str,
    input: impl Read,
    look: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let imported = onefold_cluster::Copies::of(session).import(name, input, look);
    if imported.is_err() {
        tidy(session);
    }
    imported
}

/// How long a command waits until what it gave up or replaced is freed.
const TIDIES: Duration = Duration::from_secs(2);

/// Frees what was given up or replaced, before the answer; workers do what is left.
pub(super) fn tidy(session: &Session) {
    onefold_cluster::delete_for(session, TIDIES);
}

/// Refuses a domain where there is only one.
pub(super) fn one_domain(domain: Option<&str>) -> Result<()> {
    match domain {
        None => Ok(()),
        Some(_) => {
            let what = "the volumes of a cluster store all belong to one domain";
            Err(Error::new(Kind::Unsupported, what))
        }
    }
}
