"""Certificates of openssl's making."""

import subprocess


class Authority:
    """An authority in a folder."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.certificate, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self.key, "-out", self.certificate),
        )

    def sign(self, name, san):
        """Certificate and key for subject alternative names, as openssl writes them."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request = self.folder / f"{name}.csr"
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={san}", "-keyout", key, "-out", request),
        )
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-days", "1"),
            *("-copy_extensions", "copy", "-out", certificate),
        )
        return certificate, key

    @staticmethod
    def _openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
