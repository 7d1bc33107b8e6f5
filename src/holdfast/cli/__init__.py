"""The desk: what a person types and what comes back. One verb, one file under `verbs`.

A verb parses, calls one function, and renders. Start-up is a feature: a verb is imported when it is used, and nothing
here is imported by the layers below.
"""
