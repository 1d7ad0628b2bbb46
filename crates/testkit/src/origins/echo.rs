//! Streams that come back as they are, after the greeting that a port's protocol begins with.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::World;

/// Sends back what comes, or hands the stream to whom a test has put there.
pub(super) async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, port: u16, world: Arc<World>) {
    if let Some(address) = world.shares.behind(port) {
        if let Ok(mut behind) = tokio::net::UnixStream::connect(address).await {
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await; // either may go away
        }
        return;
    }
    let greeting = match port {
        22 => "SSH-2.0-canary\r\n",
        25 => "220 canary\r\n",
        _ => "",
    };
    let mut buffer = vec![0; 16 << 10];
    let mut sent = stream.write_all(greeting.as_bytes()).await;
    while let (Ok(()), Ok(length @ 1..)) = (&sent, stream.read(&mut buffer).await) {
        sent = stream.write_all(&buffer[..length]).await;
    }
}
