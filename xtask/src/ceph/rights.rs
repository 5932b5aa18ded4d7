//! Users with the rights that docs/how-to/ceph.md tells to give them, and what is said to those who
//! lack one.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::cluster::Cluster;
use crate::{
    clients::sample,
    nbd::Client,
    product::{Onefold, path},
    program::finish,
};

/// The user who serves, works, scrubs and asks, with a right to each command that is needed.
pub(super) const DAILY: &str = "onefold";

/// The same by Ceph's profile for block devices.
pub(super) const BY_PROFILE: &str = "onefold-rbd";

/// The user who makes a store.
pub(super) const MAKER: &str = "maker";

/// The user who looks at one pool.
const LOOKER: &str = "looker";

/// The user from whom one right after the other is taken.
const LESS: &str = "less";

const MON_DAILY: &str = "allow r, allow command \"osd blocklist\"";
const MON_PROFILE: &str = "profile rbd";
const MON_MAKER: &str = "allow r, allow command \"osd pool application enable\", allow command \
                         \"osd pool application set\"";

/// Longest that a refusal may take.
const SOON: Duration = Duration::from_secs(60);

/// Bytes that are put, and written, by those who may.
const BYTES: usize = 4 << 20;

/// The same rights on each of some pools.
fn on(rights: &str, pools: &[&str]) -> String {
    pools.iter().map(|pool| format!("allow {rights} pool={pool}")).collect::<Vec<_>>().join(", ")
}

/// The rights on OSDs that the user of every day needs.
fn osd_daily(metadata: &[&str], chunks: &[&str]) -> String {
    format!("{}, {}", on("rwx", metadata), on("rw", chunks))
}

/// Makes the user of every day, with rights on these pools.
pub(super) fn daily(cluster: &Cluster, metadata: &[&str], chunks: &[&str]) -> Result<()> {
    cluster.user(DAILY, &["mon", MON_DAILY, "osd", &osd_daily(metadata, chunks)])
}

/// Makes all users that are to have what they need.
pub(super) fn users(cluster: &Cluster, metadata: &[&str], chunks: &[&str]) -> Result<()> {
    daily(cluster, metadata, chunks)?;
    cluster.user(BY_PROFILE, &["mon", MON_PROFILE, "osd", &osd_daily(metadata, chunks)])?;
    cluster.user(MAKER, &["mon", MON_MAKER, "osd", &on("rw", metadata)])
}

/// The variable by which programs know who they are.
pub(super) fn arguments(user: &str) -> (&'static str, String) {
    ("CEPH_ARGS", format!("--id {user}"))
}

/// The command as a user of the cluster.
pub(super) fn as_user(onefold: &Onefold, user: &str) -> Onefold {
    let (variable, value) = arguments(user);
    onefold.with(variable, &value)
}

/// A user who may look at pool `pool`, and at nothing else.
pub(super) fn looker(cluster: &Cluster, onefold: &Onefold, pool: &str) -> Result<Onefold> {
    cluster.user(LOOKER, &["mon", "allow r", "osd", &on("r", &[pool])])?;
    Ok(as_user(onefold, LOOKER))
}

/// Runs a verb that must fail soon, with one sentence that has `parts`.
pub(super) fn refused(onefold: &Onefold, verb: &[&str], parts: &[&str]) -> Result<()> {
    let ended = finish(onefold.command(verb), SOON, false)?;
    let said = ended.output.trim();
    ensure!(ended.status.code() == Some(1), "{verb:?} ended with {}:\n{said}", ended.status);
    ensure!(
        said.lines().count() == 1 && parts.iter().all(|part| said.contains(part)),
        "{verb:?} does not say {parts:?} in one line:\n{said}"
    );
    Ok(())
}

/// A store with what it needs for this.
pub(super) struct Lacking<'a> {
    pub(super) cluster: &'a Cluster,
    /// As the user of every day.
    pub(super) onefold: &'a Onefold,
    pub(super) store: &'a str,
    pub(super) pools: [&'a str; 2],
    pub(super) folder: &'a Path,
}

impl Lacking<'_> {
    fn refused(&self, user: &str, verb: &[&str], more: &[&str], parts: &[&str]) -> Result<()> {
        refused(&as_user(self.onefold, user), &[verb, &[self.store], more].concat(), parts)
    }

    fn daily(&self, verb: &[&str], more: &[&str]) -> Result<String> {
        self.onefold.verb([verb, &[self.store], more].concat())
    }

    fn set(&self, mon: &str, osd: &str) -> Result<()> {
        self.cluster.user(LESS, &["mon", mon, "osd", osd])
    }

    /// Takes away one right after the other. A refused command leaves all as it was.
    pub(super) fn run(&self) -> Result<()> {
        let [metadata, chunks] = self.pools;
        let both = osd_daily(&[metadata], &[chunks]);
        let file = self.folder.join("rights");
        sample(&file, BYTES)?;
        let file = path(&file);
        self.daily(&["put"], &["rights", file])?;
        self.keys(&both)?;

        let client = format!("client.{LESS}");
        let reading = |pool: &str| {
            [format!("{client} may not read pool '{pool}'"), format!("osd 'allow r pool={pool}'")]
        };
        let writing = |pool: &str| {
            [
                format!("{client} may not write to pool '{pool}'"),
                format!("osd 'allow rw pool={pool}'"),
            ]
        };
        let told = |verb: &[&str], more: &[&str], parts: &[String]| {
            self.refused(LESS, verb, more, &parts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        self.set(MON_DAILY, &on("rwx", &[chunks]))?;
        told(&["status"], &[], &reading(metadata))?;
        self.set(MON_DAILY, &on("r", &self.pools))?;
        // A user who may only read can look at the status, and serve for reading.
        self.can(LESS)?;
        self.serves_for_reading()?;
        told(&["put"], &["again", file], &writing(metadata))?;
        self.set(MON_DAILY, &on("rwx", &[metadata]))?;
        told(&["status"], &[], &reading(chunks))?;
        told(&["worker"], &["--once", "--cold", "0"], &writing(chunks))?;
        self.set(MON_DAILY, &format!("{}, {}", on("rwx", &[metadata]), on("r", &[chunks])))?;
        told(&["worker"], &["--once", "--cold", "0"], &writing(chunks))?;
        self.set(MON_DAILY, &on("rw", &self.pools))?;
        told(
            &["put"],
            &["again", file],
            &[format!("{client} may not take locks in pool '{metadata}'"), "osd 'allow rwx".into()],
        )?;
        self.no_takeover(&both)?;

        self.daily(&["worker"], &["--once", "--cold", "0"])?;
        let back = self.folder.join("rights.back");
        self.daily(&["get"], &["rights", "--output", path(&back)])?;
        ensure!(fs::read(&back)? == fs::read(file)?, "what was put is not what it was");
        fs::remove_file(&back)?;
        self.daily(&["rm"], &["rights"])?;
        Ok(())
    }

    /// No key, one that the cluster does not know, that of somebody else, and no right to ask.
    fn keys(&self, both: &str) -> Result<()> {
        self.refused(
            "nobody",
            &["status"],
            &[],
            &["there is no key of user client.nobody in ", "nobody.keyring"],
        )?;
        let keyring = |user: &str| self.cluster.keyring(&format!("client.{user}"));
        let others = fs::read_to_string(keyring(DAILY))?;
        fs::write(
            keyring("unknown"),
            others.replace(&format!("client.{DAILY}"), "client.unknown"),
        )?;
        self.refused("unknown", &["status"], &[], &["does not let user client.unknown in"])?;
        self.set(MON_DAILY, both)?;
        let mine = fs::read(keyring(LESS))?;
        fs::write(
            keyring(LESS),
            others.replace(&format!("client.{DAILY}"), &format!("client.{LESS}")),
        )?;
        self.refused(LESS, &["status"], &[], &["does not let user client.less in"])?;
        fs::write(keyring(LESS), mine)?;
        self.can(LESS)?;
        self.cluster.user(LESS, &["osd", both])?;
        self.refused(LESS, &["status"], &[], &["does not let user client.less in", "mon 'allow r'"])
    }

    /// Shows that a user can look at the status: a refusal before or after is for the right alone.
    fn can(&self, user: &str) -> Result<()> {
        let said = as_user(self.onefold, user).verb(["status", self.store, "--json"])?;
        serde_json::from_str::<Value>(&said).map(|_| ()).context("status --json")
    }

    /// Serves a volume as a user who may only read.
    fn serves_for_reading(&self) -> Result<()> {
        let socket = self.folder.join("reading.sock");
        let _ = fs::remove_file(&socket);
        let server = as_user(self.onefold, LESS).serve_to(
            self.store,
            &self.folder.join("reading.log"),
            &[format!("unix:{}", socket.display())],
            &["--read-only"],
        )?;
        let mut client = Client::connect(&socket, "small")?;
        client.read_all(65536, |_, _| Ok(()))?;
        let write = client.write_all([(0, &[1u8; 4096][..])].into_iter());
        ensure!(write.is_err(), "who may only read wrote to a volume");
        drop(client);
        server.stop()
    }

    /// A user who may not fence does not take over: the server before goes on.
    fn no_takeover(&self, both: &str) -> Result<()> {
        let serve = |onefold: &Onefold, name: &str, more: &[&str]| {
            let socket = self.folder.join(format!("{name}.sock"));
            let _ = fs::remove_file(&socket);
            let listener = format!("unix:{}", socket.display());
            let server = onefold.serve_to(
                self.store,
                &self.folder.join(format!("{name}.log")),
                &[listener],
                &[&["--workers", "0"], more].concat(),
            )?;
            anyhow::Ok((server, socket))
        };
        let (first, socket) = serve(self.onefold, "rightful", &[])?;
        let mut client = Client::connect(&socket, "small")?;
        client.write_all([(0, &[1u8; 65536][..])].into_iter())?;
        client.flush()?;
        self.set("allow r", both)?;
        let (second, other) = serve(&as_user(self.onefold, LESS), "without", &["--take-over"])?;
        match Client::connect(&other, "small") {
            Ok(_) => bail!("a volume was taken over without the right to fence"),
            Err(error) => {
                let said = format!("{error:#}");
                ensure!(
                    said.contains("may not shut out") && said.contains("osd blocklist"),
                    "the refused takeover says: {said}"
                );
                ensure!(
                    second.said().contains("may not shut out"),
                    "the server without rights does not log that:\n{}",
                    second.said()
                );
            }
        }
        second.stop()?;
        // One that would stand by is told so at once, while nobody is to be shut out.
        self.refused(
            LESS,
            &["serve"],
            &["--standby", "--nbd", &format!("unix:{}", self.folder.join("never.sock").display())],
            &["can't stand by", "may not shut out", "osd blocklist"],
        )?;
        client.write_all([(65536, &[2u8; 65536][..])].into_iter())?;
        client.flush()?;
        client.disconnect()?;
        first.stop()?;
        // Also a volume that was closed: late operations of the owner before may still come.
        let (third, other) = serve(&as_user(self.onefold, LESS), "without", &[])?;
        let said = Client::connect(&other, "small")
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default();
        ensure!(
            said.contains("may not shut out"),
            "a volume was attached without the right to fence: {said}"
        );
        third.stop()?;
        let (fourth, socket) = serve(self.onefold, "rightful", &[])?;
        let mut client = Client::connect(&socket, "small")?;
        client.read_all(131_072, |offset, found| {
            let right = found
                .iter()
                .enumerate()
                .all(|(n, byte)| usize::from(*byte) == 1 + (offset as usize + n) / 65536);
            ensure!(right, "what was written is not there");
            Ok(())
        })?;
        client.disconnect()?;
        fourth.stop()
    }
}
