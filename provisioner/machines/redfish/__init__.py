"""BMCs by Redfish: what they say of their machine (inventory.py), what they answer where something goes wrong
(answers.py), and a connection to one (client.py). Everything that is read works on a saved tree as well (tree.py).

What differs between vendors is data (data/vendors.yaml). Places are found by links and types, never by an id.
"""
