//! `onefold volume iscsi`: a volume for initiators of iSCSI, by tgt, as configuration for it.
//!
//! Onefold speaks no iSCSI. nbdfuse shows a served volume as a file, and tgt offers the file. The
//! kinds of requests keep their meaning on the way: SYNCHRONIZE CACHE and forced unit access reach
//! the volume as a flush, and UNMAP as a trim.

use std::path::{Path, PathBuf};

use clap::Args;
use onefold::parts::{
    cluster_store::Opened,
    control::{Client, Request},
};
use onefold_cluster::What;
use onefold_console::{address::uri, failure::Failure, output::Answer};
use onefold_core::{Algorithm, Fingerprinter, Kind, hex_digits};

use super::{Found, archive, block};

/// Most bytes of a target's name (RFC 7143).
const TARGET_BYTES_MAX: usize = 223;

/// What is printed.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The store
    store: PathBuf,
    /// The volume
    name: String,
    /// The file that nbdfuse shows, where tgt finds the volume
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// The name of the target
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Addresses that may connect, like 192.0.2.7 or 192.0.2.0/24
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_delimiter = ',')]
    initiator: Vec<String>,
    #[command(flatten)]
    answer: Answer,
}

/// Prints configuration for tgt, to be put below `/etc/tgt/conf.d`.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let found = Found::at(&options.store)?;
    let (there, status) = look(&found, &options.name)?;
    let Some(read_only) = there else {
        return Err(Failure::new(format!(
            "there is no volume '{}': `onefold volume list {}` shows those that there are",
            options.name.escape_debug(),
            options.store.display()
        )));
    };
    let serial = serial(&options.store, &options.name);
    let name = plain(&options.name, &serial);
    let file = options
        .file
        .clone()
        .unwrap_or_else(|| Path::new("/run/onefold-iscsi").join(&name).join("volume"));
    let target = match &options.target {
        Some(target) => target.clone(),
        None => format!("iqn.2026-11.onefold.local:{name}"),
    };
    let refused = |what: &str, value: &str| {
        Failure::usage(format!("{what} '{}' can't stand in tgt's file", value.escape_debug()))
    };
    if target.len() > TARGET_BYTES_MAX
        || !target.bytes().all(|c| c.is_ascii_alphanumeric() || b"-.:".contains(&c))
    {
        return Err(refused("the target's name", &target));
    }
    let shown = file.to_str().filter(|file| {
        file.starts_with('/')
            && file.bytes().all(|c| c.is_ascii_graphic() && !b"<>\"#\\".contains(&c))
    });
    let Some(shown) = shown else {
        return Err(refused("the path (a full one, of plain letters)", &file.to_string_lossy()));
    };
    if let Some(wrong) = options.initiator.iter().find(|address| {
        !address.bytes().all(|c| c.is_ascii_hexdigit() || b".:/".contains(&c)) || address.is_empty()
    }) {
        return Err(refused("the address", wrong));
    }
    let served = status.and_then(|status| {
        let listeners =
            status.pointer("/listeners").or_else(|| status.pointer("/server/listeners"))?;
        let all = listeners.as_array()?.iter().filter_map(|one| one.as_str());
        all.clone()
            .find(|one| one.starts_with("nbd+unix:"))
            .or_else(|| all.clone().next())
            .map(|listener| uri(listener, &options.name))
    });
    let unserved = match served {
        Some(_) => "",
        None => {
            "#   (nobody serves the store now: put the path of the server's socket for SOCKET)\n"
        }
    };
    let nbd = served.unwrap_or_else(|| uri("nbd+unix:///?socket=SOCKET", &options.name));
    // Of a volume that nobody writes to, initiators learn so.
    let writes = match read_only {
        true => "readonly 1",
        false => "write-cache on",
    };
    let initiators: String = options
        .initiator
        .iter()
        .map(|address| format!("    initiator-address {address}\n"))
        .collect();
    let configuration = format!(
        "# The volume as a file, while its store is served (nbdfuse is in Debian's libnbd-bin):\n\
         #   mkdir -p {directory} && nbdfuse {shown} '{nbd}'\n{unserved}\
         # iSCSI has no encryption, and whom an address belongs to is for the network to say.\n\
         <target {target}>\n    \
             driver iscsi\n    \
             <backing-store {shown}>\n        \
                 # Flushes and forced unit access reach the volume.\n        \
                 bs-type rdwr\n        \
                 {writes}\n        \
                 # UNMAP reaches the volume as a trim.\n        \
                 params thin_provisioning=1\n        \
                 vendor_id Onefold\n        \
                 product_id volume\n        \
                 scsi_id onefold-{serial}\n        \
                 scsi_sn {serial}\n    \
             </backing-store>\n\
         {initiators}</target>",
        directory = file.parent().unwrap_or(&file).display(),
    );
    let report = serde_json::json!({
        "target": target, "file": shown, "nbd": nbd, "serial": serial,
        "initiators": options.initiator, "configuration": configuration,
    });
    options.answer.tell(&report, configuration)
}

/// Whether the volume is read-only, where it is there, and what the store's server tells of itself, where there is one.
fn look(found: &Found, name: &str) -> Result<(Option<bool>, Option<serde_json::Value>), Failure> {
    let (there, server) = match found {
        Found::Block(file) => {
            let there = block::lines(file)?.iter().any(|line| line.name == name).then_some(false);
            (there, Client::connect(file))
        }
        Found::Archive(directory) => {
            let tables = directory.open_to_read(onefold_archive::READER_BYTES)?.tables();
            let lines = archive::lines(&tables);
            let there = lines.iter().find(|line| line.name == name).map(|line| line.read_only);
            let Some(server) = directory.server()? else { return Ok((there, None)) };
            (there, Ok(server))
        }
        Found::Cluster(url) => {
            let named = Opened::look(url)?.session.find(name)?;
            let is_it = named.is_some_and(|named| named.what == What::Volume);
            return Ok((is_it.then_some(false), None));
        }
    };
    match server {
        Ok(mut server) => Ok((there, Some(server.ask(&Request::Status)?))),
        Err(error) if error.kind() == Kind::NotFound => Ok((there, None)),
        Err(error) => Err(error.into()),
    }
}

/// A name of lower-case letters, digits and dashes, as targets have them; one that has other
/// characters gets the serial number behind it, so that no two volumes have the same.
fn plain(name: &str, serial: &str) -> String {
    let letter = |c: char| match c {
        'a'..='z' | '0'..='9' | '-' => c,
        _ => '-',
    };
    let plain: String = name.chars().take(64).map(letter).collect();
    if plain == name { plain } else { format!("{plain}-{serial}") }
}

/// A number for initiators to know the disk by: the same for the same place and name.
fn serial(store: &Path, name: &str) -> String {
    let place = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let mut text = place.into_os_string().into_encoded_bytes();
    text.push(0);
    text.extend(name.as_bytes());
    let fingerprint = Fingerprinter::new(Algorithm::Blake3, &[0; 32]).bytes(&text);
    hex_digits(&fingerprint.0[..8])
}
