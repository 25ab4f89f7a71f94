package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"
)

// verify tells whether a delivery is genuine and fresh. body is the raw body: io.ReadAll(request.Body).
func verify(secret string, body []byte, headers http.Header) bool {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	expected := hex.EncodeToString(mac.Sum(nil))
	if !hmac.Equal([]byte(expected), []byte(headers.Get("X-Webhook-Signature"))) {
		return false
	}
	sent, err := time.Parse(time.RFC3339, headers.Get("X-Webhook-Timestamp"))
	age := time.Since(sent)
	return err == nil && age.Abs() <= 5*time.Minute
}
