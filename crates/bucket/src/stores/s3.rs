//! Stores behind the protocol of S3, by the crate `object_store`.
//!
//! Credentials come from the environment, or from the machine's role, as that crate knows them; this one sees
//! none. Of an answer that tells of an error only the code or the number is shown: an answer may have the
//! names of keys.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::{
    ClientOptions, Error as StoreError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut},
    path::Path,
};
use onefold_core::{Error, Kind, Result};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use super::line::{Limits, Line, Silence};
use crate::objects::{Body, Created, Listed, Objects};

/// How long one waits for a store. A lease is renewed every 20 s.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    lease: Duration::from_secs(15),
};

/// Bytes of the parts in which a body is sent: one that has gone shows that the line moves.
const PART: usize = 64 << 10;

/// Objects of one page of a listing.
const PAGE: usize = 1000;

/// Objects that a listing has and that were not asked for, at most.
const OTHERS_MAX: usize = 10_000;

/// Begins addresses of the service by which machines of a cloud learn their role.
const MACHINE_ROLE: &str = "169.254.";

/// Objects of one bucket, below a prefix.
pub struct S3 {
    store: Arc<AmazonS3>,
    runtime: Runtime,
    bucket: String,
    /// Empty, or ends in a slash.
    prefix: String,
    limits: Limits,
}

impl S3 {
    /// The objects of a bucket below a prefix, which may be empty. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// `InvalidInput` when the environment or the address has what can't be meant.
    pub fn open(bucket: &str, prefix: &str) -> Result<S3> {
        let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
        let client = ClientOptions::new().with_allow_http(allow_http);
        let builder = AmazonS3Builder::from_env().with_client_options(client);
        S3::built(builder, bucket, prefix, LIMITS)
    }

    fn built(builder: AmazonS3Builder, bucket: &str, prefix: &str, limits: Limits) -> Result<S3> {
        // Failures that may pass are asked about again by our own rules: a creation must not be, as something else may be meant.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let built = builder
            .with_bucket_name(bucket)
            .with_http_connector(Line(limits))
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build();
        let store = built.map_err(|error| {
            let why = format!("s3://{bucket} can't be opened: {error}");
            Error::new(Kind::InvalidInput, why)
        })?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| Error::from_io("can't reach object stores", e))?;
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(S3 { store: Arc::new(store), runtime, bucket: bucket.to_owned(), prefix, limits })
    }

    /// An object's whole name, as it is: `Path::from` would write some characters otherwise, and listings have
    /// what is written.
    fn path(&self, name: &str) -> Result<Path> {
        let whole = format!("{}{name}", self.prefix);
        Path::parse(&whole)
            .map_err(|_| Error::new(Kind::InvalidInput, format!("{whole} is no object's name")))
    }

    /// A sentence for an error, without what the store said but for its code or its number.
    fn told(&self, name: &str, error: &StoreError) -> Error {
        let text = format!("{error:?} {error}");
        let code = code_of(&text);
        let bucket = &self.bucket;
        let at = |why: &str| format!("s3://{bucket}: {why}");
        let (kind, why) = match error {
            _ if code == Some("NoSuchBucket") => {
                (Kind::InvalidInput, at("there is no bucket of that name"))
            }
            _ if matches!(silence(error), Some(Silence::Elsewhere(_))) => {
                let why = "the store sends to another address, where Onefold does not follow it: AWS_REGION or \
                           AWS_ENDPOINT_URL is another one's";
                (Kind::InvalidInput, at(why))
            }
            StoreError::NotFound { .. } => {
                (Kind::NotFound, format!("s3://{bucket}/{}{name} is not there", self.prefix))
            }
            StoreError::AlreadyExists { .. } => (Kind::Exists, at(&format!("{name} is there"))),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                let code = code.unwrap_or("AccessDenied");
                let why = format!(
                    "the store refuses ({code}): the credentials of the environment, such as \
                     AWS_ACCESS_KEY_ID, are missing or have no right to this"
                );
                (Kind::Denied, at(&why))
            }
            StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
                (Kind::Unsupported, at("the store can't do what Onefold needs"))
            }
            _ if text.contains(MACHINE_ROLE) => {
                let why = "there are no credentials: set AWS_ACCESS_KEY_ID and \
                           AWS_SECRET_ACCESS_KEY in the environment (this machine has no role of a cloud)";
                (Kind::Denied, at(why))
            }
            _ => (Kind::Io, at(&why_not(error, code, &text))),
        };
        Error::new(kind, why)
    }
}

/// The code in an answer of S3.
fn code_of(text: &str) -> Option<&str> {
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let plain =
        !code.is_empty() && code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then_some(code)
}

/// Why there was no answer, when that is so.
fn silence(error: &StoreError) -> Option<&Silence> {
    let mut last: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = last {
        if let Some(silence) = error.downcast_ref::<Silence>() {
            return Some(silence);
        }
        last = error.source();
    }
    None
}

/// The sentence of an answer or of the system, and never a word of the answer's body but for its code.
fn why_not(error: &StoreError, code: Option<&str>, text: &str) -> String {
    let number = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3));
    let number = number.filter(|number| number.bytes().all(|b| b.is_ascii_digit()));
    match (silence(error), code, number) {
        (Some(silence), _, _) => format!("the store can't be reached: {silence}"),
        (None, Some(code), _) => format!("the store answers {code}"),
        (None, None, Some(number)) => format!("the store answers HTTP {number}"),
        (None, None, None) => "the store's answer can't be understood".into(),
    }
}

/// A body in parts.
fn payload(bytes: &[u8]) -> PutPayload {
    bytes.chunks(PART).map(Bytes::copy_from_slice).collect()
}

impl Objects for S3 {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(at..at.saturating_add(bytes.max(1)))),
            ..GetOptions::default()
        };
        let path = self.path(name)?;
        self.runtime.block_on(async {
            let found = self.store.get_opts(&path, options).await;
            let found = found.map_err(|error| self.told(name, &error))?;
            let (total, modified) = (found.meta.size, found.meta.last_modified.timestamp());
            // Whatever the store sends, no more than was asked for is taken.
            let mut body = Vec::new();
            let mut stream = found.into_stream();
            while let Some(part) = stream.next().await {
                let part = part.map_err(|error| self.told(name, &error))?;
                let rest = usize::try_from(bytes).unwrap_or(usize::MAX) - body.len();
                body.extend_from_slice(&part[..part.len().min(rest)]);
                if part.len() >= rest {
                    break;
                }
            }
            Ok(Body { bytes: body, total, modified: u64::try_from(modified).unwrap_or(0) })
        })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let path = match self.path(name) {
            Ok(path) => path,
            Err(error) => return Created::Unknown(error),
        };
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let ended = self.runtime.block_on(self.store.put_opts(&path, payload(bytes), options));
        match ended {
            Ok(_) => Created::New,
            Err(StoreError::AlreadyExists { .. }) => Created::Exists,
            Err(error) => {
                let error = self.told(name, &error);
                Created::Unknown(match error.kind() {
                    // Of a creation it means that two were under way at once.
                    Kind::NotFound | Kind::Exists => Error::new(Kind::Io, error.to_string()),
                    _ => error,
                })
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name)?;
        let limit = self.limits.lease;
        self.runtime.block_on(async {
            match timeout(limit, self.store.put(&path, payload(bytes))).await {
                Ok(ended) => ended.map(drop).map_err(|error| self.told(name, &error)),
                Err(_) => {
                    let why = format!("s3://{}: no answer in {} s", self.bucket, limit.as_secs());
                    Err(Error::new(Kind::Io, why))
                }
            }
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        match self.runtime.block_on(self.store.delete(&path)) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.told(name, &error)),
        }
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let prefix = self.path(folder.trim_end_matches('/'))?;
        // A name in a folder: the folder's own, with its slash, is none.
        let offset = self.path(after.trim_end_matches('/'))?;
        self.runtime.block_on(async {
            let mut stream = self.store.list_with_offset(Some(&prefix), &offset);
            let (mut listed, mut others) = (Vec::new(), 0);
            while let Some(found) = stream.next().await {
                let found = found.map_err(|error| self.told(folder, &error))?;
                let whole = found.location.to_string();
                if let Some(name) = whole.strip_prefix(&self.prefix)
                    && name > after
                {
                    listed.push(Listed { name: name.to_owned(), bytes: found.size });
                } else {
                    // A list of what nobody asked for could go on for ever.
                    others += 1;
                    if others > OTHERS_MAX {
                        let why =
                            format!("the store lists what is not in {folder}, without an end");
                        return Err(Error::new(Kind::Corrupt, why));
                    }
                }
                if listed.len() == PAGE {
                    break;
                }
            }
            listed.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(listed)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use super::*;

    /// A store on the loopback address that reads a request's head and says this; without words it says nothing.
    fn store(answer: &'static str, prefix: &str) -> S3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut head = [0; 4096];
                let _ = connection.read(&mut head);
                let _ = connection.write_all(answer.as_bytes());
                if answer.is_empty() {
                    held.push(connection);
                }
            }
        });
        let builder = AmazonS3Builder::new()
            .with_endpoint(address)
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_client_options(ClientOptions::new().with_allow_http(true));
        let short = Duration::from_millis(100);
        let limits = Limits { connect: Duration::from_secs(10), idle: short, lease: short };
        S3::built(builder, "backups", prefix, limits).unwrap()
    }

    #[test]
    fn names_are_in_the_store_as_they_are() {
        let store = store("", "a~b/c d/");
        assert_eq!(store.path("log/1").unwrap().as_ref(), "a~b/c d/log/1");
    }

    #[test]
    fn a_silent_store_holds_nobody_up() {
        let store = store("", "");
        let error = store.get("log/1", 0, 10).unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().contains("nothing came"), "{error}");
        assert!(matches!(store.create("log/1", &[0; 300_000]), Created::Unknown(_)));
        assert_eq!(store.replace("writer/1", b"lease").unwrap_err().kind(), Kind::Io);
        assert_eq!(store.list("log/", "log/").unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn an_answer_that_stops_is_no_answer() {
        let store = store(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\
             ETag: \"x\"\r\nLast-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n\r\nabc",
            "",
        );
        let error = store.get("log/1", 0, 10).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
    }

    #[test]
    fn no_word_of_an_answer_is_shown() {
        let store = store(
            "HTTP/1.1 500 x\r\nContent-Length: 21\r\nConnection: close\r\n\r\nthe key of the bucket",
            "",
        );
        let error = store.get("log/1", 0, 10).unwrap_err().to_string();
        assert_eq!(error, "s3://backups: the store answers HTTP 500");
    }

    #[test]
    fn nobody_is_followed_elsewhere() {
        let store = store(
            "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            "",
        );
        let error = store.get("log/1", 0, 10).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
        assert!(error.to_string().contains("sends to another address"), "{error}");
    }

    #[test]
    fn only_the_code_of_an_answer_is_taken() {
        let text =
            "x <Error><Code>NoSuchBucket</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        assert_eq!(code_of(text), Some("NoSuchBucket"));
        assert_eq!(code_of("<Code>a b</Code>"), None);
        assert_eq!(code_of("no code"), None);
    }
}
