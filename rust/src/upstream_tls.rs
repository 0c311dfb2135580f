//! TLS towards a server: its certificate is checked for its name, ours is shown if it asks.

use crate::tls::{KEYS, certificates, read};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where systems keep the authorities that they trust, the most common place first.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The settings of `kvorum.edge.upstream.UpstreamTls`, where each is documented.
pub struct TlsSettings {
    pub server_name: String,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub verify: bool,
}

/// Reads the files; the error names the one that cannot be used.
pub fn load(settings: &TlsSettings) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let name = ServerName::try_from(settings.server_name.clone())
        .map_err(|_| format!("{:?} is no name of a server", settings.server_name))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS versions: {error}"))?;
    let builder = if settings.verify {
        builder.with_root_certificates(roots(settings)?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
    };
    let mut config = match (&settings.cert_file, &settings.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert_file), Some(key_file)) => {
            let chain = certificates(cert_file)?;
            let key = PrivateKeyDer::from_pem_slice(&read(key_file)?)
                .map_err(|error| format!("{}: {error}", key_file.display()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                let (cert, key) = (cert_file.display(), key_file.display());
                match error {
                    Error::General(_) => format!("{cert} with {key}: the key is none of {KEYS}"),
                    error => format!("{cert} with {key}: {error}"),
                }
            })?
        }
        (Some(file), None) => return Err(format!("{}: its key is missing", file.display())),
        (None, Some(file)) => {
            return Err(format!("{}: its certificate is missing", file.display()));
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), name))
}

fn roots(settings: &TlsSettings) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let file = match settings.ca_file.clone().or(named) {
        Some(file) => file,
        None => SYSTEM_FILES
            .iter()
            .map(Path::new)
            .find(|file| file.exists())
            .ok_or("the system's authorities were not found: name a file of them")?
            .to_owned(),
    };
    roots.add_parsable_certificates(certificates(&file)?);
    Ok(roots)
}

/// Accepts whatever certificate a server shows, if it has the key of it.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
