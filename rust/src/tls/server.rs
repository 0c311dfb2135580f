//! TLS of one listener: loads its files, reloads them when they change, and verifies clients.
//!
//! Files are checked before every handshake. While changed files cannot be used, for example
//! because only the certificate or only the key has been replaced, the old ones stay in use.

use crate::tls::chains::{Authorities, Purpose, verify_signatures};
use crate::tls::der;
use crate::tls::files::{identity, read};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ProtocolVersion,
    ServerConfig, SignatureScheme, SupportedProtocolVersion,
};
use std::cell::RefCell;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The settings of `kvorum.network.edge.interface.TlsSettings`, where each is documented.
pub struct TlsSettings {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub client_ca_file: Option<PathBuf>,
    pub client_crl_file: Option<PathBuf>,
    pub allowed_names: Vec<String>,
    pub allowed_hostnames: Vec<String>,
    pub version_min: String,
    pub version_max: String,
    pub cipher_suites: Vec<String>,
    pub plain_too: bool,
    pub http1_only: bool,
}

impl TlsSettings {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert_file, &self.key_file]
            .into_iter()
            .chain(&self.client_ca_file)
            .chain(&self.client_crl_file)
    }

    fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let allowed = |name: &str| {
            (self.version_min.as_str() <= name)
                && (self.version_max.is_empty() || name <= self.version_max.as_str())
        };
        let known = [("TLS1.2", &TLS12), ("TLS1.3", &TLS13)];
        known.into_iter().filter(|(name, _)| allowed(name)).map(|(_, version)| version).collect()
    }
}

/// A file's inode, modification time and size, which differ when its content has changed.
type Stamp = (u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
}

struct Loaded {
    stamps: Vec<Option<Stamp>>,
    config: Arc<ServerConfig>,
}

pub struct Tls {
    settings: TlsSettings,
    loaded: RefCell<Loaded>,
}

impl Tls {
    /// Reads the files; the error names the one that cannot be used.
    pub fn new(settings: TlsSettings) -> Result<Tls, String> {
        let stamps = settings.files().map(|path| stamp(path)).collect();
        let config = load(&settings)?;
        Ok(Tls { settings, loaded: RefCell::new(Loaded { stamps, config }) })
    }

    pub fn plain_too(&self) -> bool {
        self.settings.plain_too
    }

    /// The configuration for the next handshake, and an error if changed files cannot be used.
    pub fn config(&self) -> (Arc<ServerConfig>, Option<String>) {
        let mut loaded = self.loaded.borrow_mut();
        let stamps: Vec<_> = self.settings.files().map(|path| stamp(path)).collect();
        let mut failure = None;
        if stamps != loaded.stamps {
            // Keep the stamps even if loading fails: the same files would fail again.
            loaded.stamps = stamps;
            match load(&self.settings) {
                Ok(config) => loaded.config = config,
                Err(reason) => failure = Some(reason),
            }
        }
        (loaded.config.clone(), failure)
    }
}

fn load(settings: &TlsSettings) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(provider(settings)?);
    let identity = identity(&settings.cert_file, &settings.key_file, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&settings.versions())
        .map_err(|error| format!("TLS versions: {error}"))?;
    let builder = match Clients::load(settings, provider)? {
        Some(clients) => builder.with_client_cert_verifier(Arc::new(clients)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identity);
    if !settings.http1_only {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    }
    // No session may resume: the client would not present its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The cryptography provider with the allowed cipher suites; TLS 1.3's are always allowed.
fn provider(settings: &TlsSettings) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            let name = suite.suite().as_str().unwrap_or_default();
            suite.version().version == ProtocolVersion::TLSv1_3
                || settings.cipher_suites.iter().any(|allowed| allowed == name)
        });
        let has_older = provider
            .cipher_suites
            .iter()
            .any(|suite| suite.version().version == ProtocolVersion::TLSv1_2);
        if !has_older && settings.version_max == "TLS1.2" {
            return Err("none of the cipher suites is known".to_owned());
        }
    }
    Ok(provider)
}

/// Verifies the clients that connect.
#[derive(Debug)]
struct Clients {
    authorities: Authorities,
    revoked: HashSet<Vec<u8>>,
    names: Vec<String>,
    hostnames: Vec<ServerName<'static>>,
}

impl Clients {
    fn load(
        settings: &TlsSettings,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Clients>, String> {
        let Some(path) = &settings.client_ca_file else { return Ok(None) };
        let authorities = Authorities::load(path, provider)?;
        let mut revoked = HashSet::new();
        if let Some(path) = &settings.client_crl_file {
            let data = read(path)?;
            let list = match CertificateRevocationListDer::from_pem_slice(&data) {
                Ok(list) => list.as_ref().to_vec(),
                Err(_) => data,
            };
            let numbers = der::revoked_serial_numbers(&list)
                .ok_or_else(|| format!("{}: no revocation list", path.display()))?;
            revoked.extend(numbers);
        }
        let hostnames = settings
            .allowed_hostnames
            .iter()
            .map(|name| ServerName::try_from(name.clone()).map_err(|_| format!("{name}: no name")))
            .collect::<Result<_, _>>()?;
        let names = settings.allowed_names.clone();
        Ok(Some(Clients { authorities, revoked, names, hostnames }))
    }

    fn is_allowed(&self, certificate: &CertificateDer<'_>) -> bool {
        if !self.names.is_empty() {
            let name = der::common_name(certificate);
            return name.is_some_and(|name| self.names.iter().any(|allowed| allowed == name));
        }
        self.hostnames.is_empty()
            || ParsedCertificate::try_from(certificate).is_ok_and(|parsed| {
                self.hostnames.iter().any(|name| verify_server_name(&parsed, name).is_ok())
            })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.names()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.authorities.verify(end_entity, intermediates, Purpose::Client, now)?;
        let is_revoked = |certificate: &CertificateDer<'_>| {
            der::serial_number(certificate).is_none_or(|number| self.revoked.contains(number))
        };
        if !self.revoked.is_empty()
            && (is_revoked(end_entity) || intermediates.iter().any(is_revoked))
        {
            return Err(CertificateError::Revoked.into());
        }
        if !self.is_allowed(end_entity) {
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    verify_signatures!(authorities);
}
